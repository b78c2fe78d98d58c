/**
 * Loaded into an agent with `node --import`. Appends long stalls of the event loop and long netlink calls to the file
 * AGENT_MONITOR, one JSON object a line.
 */
import { appendFileSync } from 'node:fs';
import { libc } from '../netlink/core/libc.ts';

/** A turn of the event loop, or a netlink call in the thread pool, that took long. */
export interface LongWork {
  readonly kind: 'stall' | 'send' | 'receive';
  /** When it began, in milliseconds of the Unix epoch. */
  readonly at: number;
  /** Milliseconds; of a netlink call until the event loop sees that it has ended. */
  readonly wall: number;
  /** Milliseconds of CPU time of the main thread; 0 for netlink calls. */
  readonly cpu: number;
}

/** Milliseconds; shorter work is not reported. */
const LEAST = 10;
/** Milliseconds between two looks at the clock. */
const PERIOD = 2;

const path = process.env.AGENT_MONITOR ?? '';

function report(kind: LongWork['kind'], start: number, end: number, cpu = 0): void {
  const work: LongWork = { kind, at: performance.timeOrigin + start, wall: end - start, cpu };
  if (work.wall >= LEAST) appendFileSync(path, `${JSON.stringify(work)}\n`);
}

const calls = libc();
const { send, receivePooled } = calls;

async function timed(kind: LongWork['kind'], call: Promise<number>): Promise<number> {
  const start = performance.now();
  const result = await call;
  report(kind, start, performance.now());
  return result;
}

Object.assign(calls, {
  send: (...args: Parameters<typeof send>) => timed('send', send(...args)),
  receivePooled: (...args: Parameters<typeof receivePooled>) =>
    timed('receive', receivePooled(...args)),
} satisfies Partial<typeof calls>);

let last = performance.now();
let used = process.threadCpuUsage();
setInterval(() => {
  const now = performance.now();
  const { user, system } = process.threadCpuUsage(used);
  report('stall', last, now, (user + system) / 1000);
  last = performance.now();
  used = process.threadCpuUsage();
}, PERIOD).unref();
