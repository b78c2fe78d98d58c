/**
 * The thread that looks into packets. It has the queue to itself: what keeps the agent's main thread
 * would otherwise keep every pod of the node from resolving names.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { addressBytes } from '../../netlink/address.ts';
import { PacketQueue, type QueuedPacket } from '../../netlink/nfqueue.ts';
import { type Hold, Holds } from './holds.ts';
import { Inspector, type Resolution } from './inspector.ts';
import { QueueLength } from './queue-length.ts';
import { COUNTS, type FromThread, type ThreadOptions, type ToThread } from './thread-messages.ts';

const options = workerData as ThreadOptions;
const queue = new PacketQueue(options.queue);
const inspector = new Inspector<Hold>();
const holds = new Holds((packet) => queue.accept(packet));
const queueLength = new QueueLength();
/** Of threads before this one. */
const counted = Float64Array.from(options.counts);
let batch: (readonly Resolution[])[] = [];
let first = 0;
/** Packets of this turn of the event loop. */
let taken = 0;
let length = 0;
let timer: NodeJS.Timeout | undefined;

function tell(message: FromThread): void {
  parentPort?.postMessage(message);
}

function take({ id, link, bytes }: QueuedPacket): void {
  // After all packets that are there.
  if (taken === 0) queueMicrotask(settle);
  taken += 1;
  const now = performance.now();
  let finding: ReturnType<typeof inspector.inspect>;
  try {
    finding = inspector.inspect(bytes, link, now);
  } catch (error) {
    queue.accept(id);
    tell({ kind: 'failed', error: error instanceof Error ? (error.stack ?? '') : String(error) });
    return;
  }
  const { resolutions, stream } = finding;
  if (resolutions.length > 0) {
    const hold = holds.hold(id, now);
    if (hold === undefined) return;
    if (stream !== undefined) stream.tag = hold;
    if (batch.length === 0) first = hold.number;
    batch.push(resolutions);
  } else if (stream?.tag !== undefined) holds.join(stream.tag, id);
  else queue.accept(id);
}

function settle(): void {
  resize(queueLength.length(taken + holds.waiting, performance.now()));
  taken = 0;
  if (batch.length > 0) tell({ kind: 'resolutions', first, batch });
  batch = [];
  wait();
  const numbers = { ...inspector.counts, givenUp: inspector.givenUp, overdue: holds.overdue };
  for (const [index, count] of COUNTS.entries()) {
    options.counts[index] = (counted[index] ?? 0) + numbers[count];
  }
}

function resize(wanted: number): void {
  if (wanted === length) return;
  length = wanted;
  queue.resize(length);
}

/** Until somebody has waited for too long. */
function wait(): void {
  const { deadline } = holds;
  if (deadline === undefined || timer !== undefined) return;
  timer = setTimeout(
    () => {
      timer = undefined;
      holds.check(performance.now());
      wait();
    },
    Math.max(deadline - performance.now(), 0),
  );
}

function hear(message: ToThread): void {
  switch (message.kind) {
    case 'settings': {
      inspector.setPatterns(message.patterns);
      const keys = message.resolvers.map((resolver) => addressBytes(resolver).toString('latin1'));
      inspector.setResolvers(new Set(keys));
      break;
    }
    case 'learned':
      holds.release(message.first, message.last);
      break;
    case 'stop':
      holds.releaseAll();
      queue.close();
      clearTimeout(timer);
      parentPort?.close();
  }
}

parentPort?.on('message', hear);
length = queueLength.length(0, performance.now());
queue.listen(length, take);
tell({ kind: 'ready' });
