/**
 * The thread that looks into packets. It has the queue to itself: what keeps the agent's main thread
 * would otherwise keep every pod of the node from resolving names.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { PacketQueue, type QueuedPacket } from '../../netlink/nfqueue/queue.ts';
import { PacketHandler } from './packet-handler.ts';
import { QueueLength } from './queue-length.ts';
import {
  COUNTER_NAMES,
  type FromThread,
  NO_DESCRIPTOR,
  type ThreadOptions,
  type ToThread,
} from './thread-messages.ts';

const options = workerData as ThreadOptions;
const queue = new PacketQueue(options.queue);
options.descriptor[0] = queue.descriptor;
const intake = new PacketHandler((packet) => queue.accept(packet));
const queueLength = new QueueLength();
/** By threads before this one. */
const counted = Float64Array.from(options.counts);
/** Packets of this turn of the event loop. */
let taken = 0;
let length = queueLength.length(0, performance.now());
let timer: NodeJS.Timeout | undefined;

function tell(message: FromThread): void {
  parentPort?.postMessage(message);
}

function take(packet: QueuedPacket): void {
  // After all packets that are there.
  if (taken === 0) queueMicrotask(settle);
  taken += 1;
  try {
    intake.handle(packet, performance.now());
  } catch (error) {
    tell({ kind: 'failed', error: error instanceof Error ? (error.stack ?? '') : String(error) });
  }
}

function settle(): void {
  resize(queueLength.length(taken + intake.deferred.waiting, performance.now()));
  taken = 0;
  const batch = intake.takeBatch();
  if (batch !== undefined) tell({ kind: 'observations', ...batch });
  wait();
  const counts = intake.counts();
  for (const [index, count] of COUNTER_NAMES.entries()) {
    options.counts[index] = (counted[index] ?? 0) + counts[count];
  }
}

function resize(wanted: number): void {
  if (wanted === length) return;
  length = wanted;
  queue.setMaxLength(length);
}

/** Until somebody has waited for too long. */
function wait(): void {
  const { deadline } = intake.deferred;
  if (deadline === undefined || timer !== undefined) return;
  timer = setTimeout(
    () => {
      timer = undefined;
      intake.deferred.check(performance.now());
      wait();
    },
    Math.max(deadline - performance.now(), 0),
  );
}

function hear(message: ToThread): void {
  switch (message.kind) {
    case 'settings':
      intake.configure(message.patterns, message.resolvers);
      break;
    case 'learned':
      intake.deferred.release(message.first, message.last);
      break;
    case 'stop':
      intake.deferred.releaseAll();
      queue.close();
      options.descriptor[0] = NO_DESCRIPTOR;
      clearTimeout(timer);
      parentPort?.close();
  }
}

parentPort?.on('message', hear);
queue.bind(length, take);
tell({ kind: 'ready' });
