import { setTimeout as sleep } from 'node:timers/promises';
import type { Log } from './log.ts';

/** Milliseconds between two attempts; after failures each time twice as many, up to the second. */
const PERIOD = 60_000;
const LONGEST_PERIOD = 60 * PERIOD;

/**
 * Attempts something until it is done. Neither a failure nor the waiting holds up anything: it is no
 * reason for the process to stay. A failure is a warning, and again one when its reason is another.
 * @param failure what went wrong, in words for the log.
 * @param attempt tells whether it is done.
 */
export async function untilDone(
  failure: string,
  log: Log,
  attempt: () => Promise<boolean>,
  period = PERIOD,
): Promise<void> {
  let wait = period;
  let warnedOf: string | undefined;
  for (;;) {
    try {
      if (await attempt()) return;
      wait = period;
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      if (reason !== warnedOf) log.warn({ err: error }, `${failure}; trying again`);
      if (warnedOf !== undefined) wait = Math.min(2 * wait, LONGEST_PERIOD);
      warnedOf = reason;
    }
    await sleep(wait, undefined, { ref: false });
  }
}
