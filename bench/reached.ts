/** Waits until connections from the client of a network succeed. */
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { runIn } from '../test/lab/processes.ts';
import type { Network } from './network.ts';
import { type ConnectTarget, directTarget } from './packets.ts';
import { LIMIT } from './table.ts';

/** No connection succeeded within the time limit. */
export class TimedOut extends Error {
  override readonly name = 'TimedOut';
}

/** What an endpoint does with a connection that reached it: without a listener it refuses. */
export type Answer = 'refused' | 'accepted';

export type Reached = (target: ConnectTarget) => Promise<number>;

const REACH = fileURLToPath(new URL('reach.ts', import.meta.url));

/** Milliseconds of the Unix epoch. */
export function now(): number {
  return performance.timeOrigin + performance.now();
}

/**
 * @param use gets a function that waits until a connection to a target succeeds, and returns that
 * time in milliseconds of the Unix epoch.
 */
export async function withReach<Result>(
  network: Network,
  use: (reached: Reached) => Promise<Result>,
  answer: Answer = 'refused',
): Promise<Result> {
  const client = runIn('client', network.client);
  try {
    const { stdin, stdout } = client.spawn(process.execPath, [REACH, answer], { stdin: 'pipe' });
    if (stdin === null || stdout === null) throw new Error('reach.ts did not start');
    const lines = createInterface({ input: stdout })[Symbol.asyncIterator]();
    const reached: Reached = async (target) => {
      stdin.write(`${JSON.stringify(target)}\n`);
      const late = sleep(LIMIT * 1000, undefined, { ref: false }).then(() => {
        throw new TimedOut(`no connection to ${target.address} within ${LIMIT} s`);
      });
      const { value } = await Promise.race([lines.next(), late]);
      return Number(value);
    };
    // Wait until reach.ts runs. This target needs no rules.
    await reached(directTarget());
    return await use(reached);
  } finally {
    await client.stop();
  }
}
