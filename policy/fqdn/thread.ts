/**
 * The thread that inspects DNS packets. It owns the NFQUEUE, so that a busy main thread does not
 * delay the DNS traffic of all pods on the node.
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
const handler = new PacketHandler((packet) => queue.accept(packet));
const queueLength = new QueueLength();
/** Counter values of earlier threads. */
const baseCounts = Float64Array.from(options.counts);
/** Packets received in this turn of the event loop. */
let received = 0;
let length = queueLength.length(0, performance.now());
let timer: NodeJS.Timeout | undefined;
let aliveTimer: NodeJS.Timeout | undefined;
/** Milliseconds between signs of life. The kernel stops queueing packets after four missing ones. */
const ALIVE_PERIOD = 500;

function post(message: FromThread): void {
  parentPort?.postMessage(message);
}

function onPacket(packet: QueuedPacket): void {
  // `flush` runs after all packets that this turn of the event loop delivers.
  if (received === 0) queueMicrotask(flush);
  received += 1;
  try {
    handler.handle(packet, performance.now());
  } catch (error) {
    post({ kind: 'failed', error: error instanceof Error ? (error.stack ?? '') : String(error) });
  }
}

function flush(): void {
  resize(queueLength.length(received + handler.deferred.waiting, performance.now()));
  received = 0;
  const batch = handler.takeBatch();
  if (batch !== undefined) post({ kind: 'observations', ...batch });
  scheduleCheck();
  const counts = handler.counts();
  for (const [index, count] of COUNTER_NAMES.entries()) {
    options.counts[index] = (baseCounts[index] ?? 0) + counts[count];
  }
}

function resize(target: number): void {
  if (target === length) return;
  length = target;
  queue.setMaxLength(length);
}

/** Schedules a check for overdue packets at the next deadline. */
function scheduleCheck(): void {
  const { deadline } = handler.deferred;
  if (deadline === undefined || timer !== undefined) return;
  timer = setTimeout(
    () => {
      timer = undefined;
      handler.deferred.check(performance.now());
      scheduleCheck();
    },
    Math.max(deadline - performance.now(), 0),
  );
}

/** Tells the main thread that this thread reads the queue: now, and regularly. */
function reportAlive(isActive: boolean): void {
  clearInterval(aliveTimer);
  if (!isActive) return;
  post({ kind: 'alive' });
  aliveTimer = setInterval(() => post({ kind: 'alive' }), ALIVE_PERIOD);
}

function onMessage(message: ToThread): void {
  switch (message.kind) {
    case 'settings':
      handler.configure(message.patterns, message.resolvers);
      reportAlive(message.patterns.length > 0);
      break;
    case 'stored':
      handler.deferred.release(message.first, message.last);
      break;
    case 'stop':
      handler.deferred.releaseAll();
      queue.close();
      options.descriptor[0] = NO_DESCRIPTOR;
      clearTimeout(timer);
      clearInterval(aliveTimer);
      parentPort?.close();
  }
}

parentPort?.on('message', onMessage);
queue.bind(length, onPacket);
post({ kind: 'ready' });
