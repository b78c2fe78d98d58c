import { setTimeout as sleep } from 'node:timers/promises';
import { LabError, messageOf } from './errors.ts';

const FIRST_INTERVAL_MS = 2;
const LONGEST_INTERVAL_MS = 100;
/** Factor for all deadlines: test/uml sets it in kernels that run slowly. */
export const PATIENCE = Number(process.env.PORTWIDE_PATIENCE ?? 1);
/** Longer in an emulated processor, where several clients would leave little to the agent. */
const REST_MS = Math.min(300, 5 * PATIENCE ** 2);

/**
 * Polls `condition` until it returns a truthy value, and returns that value. The interval grows
 * from 2 ms to 100 ms. A condition that throws counts as not met.
 *
 * @throws LabError `DEADLINE` after `deadlineMs`, with the description and the last value or error.
 */
export async function waitFor<T>(
  description: string,
  condition: () => T | Promise<T>,
  deadlineMs = 20_000,
): Promise<NonNullable<T>> {
  const end = performance.now() + deadlineMs * PATIENCE;
  let interval = FIRST_INTERVAL_MS;
  for (;;) {
    let last: string;
    let cause: unknown;
    try {
      const value = await condition();
      if (value) return value;
      last = `last value ${JSON.stringify(value) ?? String(value)}`;
    } catch (error) {
      cause = error;
      last = `last error: ${messageOf(error)}`;
    }
    const left = end - performance.now();
    if (left <= 0) {
      throw new LabError(
        'DEADLINE',
        `not within ${deadlineMs * PATIENCE} ms: ${description}; ${last}`,
        cause,
      );
    }
    await sleep(Math.min(interval, left));
    interval = Math.min(interval * 1.5, LONGEST_INTERVAL_MS);
  }
}

/**
 * Runs `step` repeatedly until `isOver`, like a client that connects continuously. Pauses a few
 * milliseconds after each step, so that the client does not take the CPU from the program under
 * test.
 *
 * @throws errors of `step`
 */
export async function repeatUntil(
  isOver: () => boolean,
  step: () => Promise<unknown>,
): Promise<void> {
  while (!isOver()) {
    await step();
    await sleep(REST_MS);
  }
}
