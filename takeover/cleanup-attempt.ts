/** One attempt to clean up: removed state, failed parts, and connections that still need state. */

/** Finds leftover state of one kind, and removes the parts that may be removed now. */
export type CleanupStep = (attempt: CleanupAttempt) => Promise<void>;

export class CleanupAttempt {
  /** Removed state, as fields of log lines. */
  readonly removed: object[] = [];
  /** Parts that could not be removed (`iptables-nft, table nat`), with the errors. */
  readonly failures: { readonly part: string; readonly error: unknown }[] = [];
  /**
   * Number of established connections that need the kept state; 0: handshakes in flight may need the
   * state. undefined: no state was kept for connections.
   */
  connections: number | undefined;

  /** Removes one part. An error is recorded and does not prevent the removal of other parts. */
  async remove(part: string, work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      this.failures.push({ part, error });
    }
  }
}

/** Combines several errors into one. */
export function aggregateErrors(failures: readonly unknown[]): AggregateError {
  return new AggregateError(failures, failures.map(String).join('; '), { cause: failures[0] });
}
