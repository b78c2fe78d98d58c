/** Removing what another mode, of Portwide or of kube-proxy, left on the node: tried until it is gone. */
import type { Kept, Leftover } from '../metrics/portwide.ts';
import type { DebugLog } from '../process/log.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import type { Timers } from '../sync/loop.ts';

/**
 * Milliseconds between two looks whether connections have ended. What they needed is to be gone
 * within 60 s of the last one, the removal of thousands of VIPs included.
 */
const LOOK_PERIOD = 15_000;
/** Milliseconds in which handshakes that are under way are over, a SYN that was lost and sent again included. */
const HANDSHAKE_PERIOD = 2000;
/** Milliseconds from a failure to the next attempt; doubled with each one in a row, up to the longest. */
const RETRY_PERIOD = 1000;
const LONGEST_RETRY_PERIOD = 5 * 60_000;

/** One removal that is to be done. */
export interface Removal {
  readonly what: Leftover;
  /** What a failure is called in the log. */
  readonly failure: string;
  /**
   * @returns how many established connections still need what is to be removed, 0: it is gone; or that
   * handshakes that are under way may; or that a sysctl must be set back first.
   */
  attempt(): Promise<number | 'handshakes' | 'sysctl'>;
}

/** All removals of an agent, and what they have not removed yet. */
export class Takeover {
  readonly #log: DebugLog;
  readonly #failures: RepeatedFailures;
  readonly #timers: Timers;
  readonly #kept = new Map<Removal, Kept>();
  readonly #waiting = new Set<unknown>();
  #removals = 0;
  #stopped = false;

  constructor(log: DebugLog, timers: Timers) {
    this.#log = log;
    this.#failures = new RepeatedFailures(log, () => timers.now());
    this.#timers = timers;
  }

  /** Attempts a removal until it is done, and resolves then; never after `stop()`. */
  async remove(removal: Removal): Promise<void> {
    const { what, failure } = removal;
    this.#removals += 1;
    const key = String(this.#removals);
    const succeeded = () => this.#failures.succeeded(key, { what }, 'the removal succeeds again');
    let retryPeriod = RETRY_PERIOD;
    for (;;) {
      try {
        const left = await removal.attempt();
        if (left === 0) break;
        const reason = left === 'sysctl' ? left : 'connections';
        const connections = typeof left === 'number' ? left : 0;
        const known = this.#kept.get(removal)?.connections ?? 0;
        if (connections > 0 && known === 0) {
          this.#log.info(
            { what, connections },
            `mode ${what} left established connections; what they need stays until they end`,
          );
        }
        this.#kept.set(removal, { what, reason, connections });
        retryPeriod = RETRY_PERIOD;
        succeeded();
        await this.#wait(left === 'handshakes' ? HANDSHAKE_PERIOD : LOOK_PERIOD);
      } catch (error) {
        this.#failures.failed(key, { err: error }, `${failure}; trying again`);
        this.#kept.set(removal, { what, reason: 'error', connections: 0 });
        await this.#wait(retryPeriod);
        retryPeriod = Math.min(2 * retryPeriod, LONGEST_RETRY_PERIOD);
      }
    }
    this.#kept.delete(removal);
    succeeded();
  }

  /** What is still on the node, and why. */
  kept(): Iterable<Kept> {
    return this.#kept.values();
  }

  /** No attempt begins any more. What was not removed is found again by the next agent. */
  stop(): void {
    this.#stopped = true;
    for (const handle of this.#waiting) this.#timers.clear(handle);
    this.#waiting.clear();
  }

  #wait(milliseconds: number): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    if (this.#stopped) return promise;
    const handle = this.#timers.set(() => {
      this.#waiting.delete(handle);
      resolve();
    }, milliseconds);
    this.#waiting.add(handle);
    return promise;
  }
}
