/** One attempt to remove leftovers, part by part: what is gone, what failed, and what is kept for connections. */

/** One kind of leftover: finds what is there and removes it, or as much as may go now. */
export type CleanupStep = (attempt: CleanupAttempt) => Promise<void>;

export class CleanupAttempt {
  /** What was there and is gone, as a log line tells it. */
  readonly removed: object[] = [];
  /** What could not be removed, by name of the part (`iptables-nft, table nat`), and why. */
  readonly failures: { readonly part: string; readonly error: unknown }[] = [];
  /** Established connections that need what is kept for them; 0: handshakes that are under way may. */
  connections: number | undefined;

  /** A part that cannot be removed keeps no other from going. */
  async remove(part: string, work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      this.failures.push({ part, error });
    }
  }
}

/** Several failures as one. */
export function aggregateErrors(failures: readonly unknown[]): AggregateError {
  return new AggregateError(failures, failures.map(String).join('; '), { cause: failures[0] });
}
