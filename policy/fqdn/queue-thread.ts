/**
 * Has the thread that looks into packets run for as long as it is wanted. To start it takes longer than all
 * else that is to be done for the first name, so it is started before, and rests between names.
 */
import { Worker } from 'node:worker_threads';
import { closeQueueDescriptor } from '../../netlink/nfqueue/queue.ts';
import type { Timers } from '../../sync/timers.ts';
import {
  COUNTER_NAMES,
  type CounterName,
  type FromThread,
  NO_DESCRIPTOR,
  type ThreadOptions,
  type ToThread,
} from './thread-messages.ts';

export interface QueueThreadOptions {
  readonly queue: number;
  readonly timers: Timers;
  /** @param reply goes to the thread that sent it, which another may have replaced meanwhile. */
  readonly onMessage: (message: FromThread, reply: (message: ToThread) => void) => void;
  /** It ended, or could not begin. Another follows. */
  readonly onFailure: (error: unknown) => void;
}

type ThreadSettings = Extract<ToThread, { readonly kind: 'settings' }>;

/** Milliseconds. While there is no thread, packets bypass the queue. */
const BACKOFF = { first: 100, max: 30_000 };
/** It needs a few, and what it keeps is bounded below that. */
const HEAP_MIB = 128;

/** Beside this file, or beside the file that scripts/bundle.ts has put this into. */
const SCRIPT = new URL(
  import.meta.url.endsWith('.ts') ? './thread.ts' : './thread.mjs',
  import.meta.url,
);

/** Of a thread that rests: it looks for nothing. */
const IDLE: ThreadSettings = { kind: 'settings', patterns: [], resolvers: [] };

export class QueueThread {
  readonly #options: QueueThreadOptions;
  readonly #counts = new Float64Array(
    new SharedArrayBuffer(COUNTER_NAMES.length * Float64Array.BYTES_PER_ELEMENT),
  );
  #settings: ThreadSettings | undefined;
  #worker: Worker | undefined;
  /** Of the last one. */
  #ended: Promise<unknown> = Promise.resolve();
  #timer: unknown;
  #backoff = BACKOFF.first;

  constructor(options: QueueThreadOptions) {
    this.#options = options;
  }

  /** Has it run, with these settings. */
  run(settings: Omit<ThreadSettings, 'kind'>): void {
    this.#set({ kind: 'settings', ...settings });
  }

  /**
   * Has it be there, and look for nothing. If it cannot, as where the kernel has no queues, nobody is told
   * and it is not tried again before it is wanted.
   */
  idle(): void {
    this.#set(IDLE);
  }

  /** Has it end. What it holds back goes on, and its packets bypass the queue from then on. */
  async stop(): Promise<void> {
    const { timers } = this.#options;
    timers.clear(this.#timer);
    this.#timer = undefined;
    this.#settings = undefined;
    const stop: ToThread = { kind: 'stop' };
    this.#worker?.postMessage(stop);
    this.#worker = undefined;
    await this.#ended;
  }

  /** Since this object was made. */
  count(what: CounterName): number {
    return this.#counts[COUNTER_NAMES.indexOf(what)] ?? 0;
  }

  #set(settings: ThreadSettings): void {
    this.#settings = settings;
    if (this.#worker !== undefined) this.#worker.postMessage(settings);
    // One that is about to end has the queue still.
    else if (this.#timer === undefined) void this.#ended.then(() => this.#start());
  }

  #start(): void {
    if (this.#settings === undefined || this.#worker !== undefined) return;
    const { queue, onMessage, onFailure, timers } = this.#options;
    const descriptor = new Int32Array(new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT)).fill(
      NO_DESCRIPTOR,
    );
    const workerData: ThreadOptions = { queue, counts: this.#counts, descriptor };
    const resourceLimits = { maxOldGenerationSizeMb: HEAP_MIB };
    const worker = new Worker(SCRIPT, { workerData, resourceLimits, execArgv: [] });
    this.#worker = worker;
    worker.postMessage(this.#settings);
    worker.on('message', (message: FromThread) => {
      if (message.kind === 'ready') this.#backoff = BACKOFF.first;
      onMessage(message, (reply) => worker.postMessage(reply));
    });
    let failure: unknown;
    worker.on('error', (error) => {
      failure = error;
    });
    this.#ended = new Promise<void>((resolve) => {
      worker.once('exit', (code) => {
        const [left = NO_DESCRIPTOR] = descriptor;
        if (left !== NO_DESCRIPTOR) closeQueueDescriptor(left);
        resolve();
        if (this.#worker !== worker) return;
        this.#worker = undefined;
        if (this.#settings === IDLE) return;
        this.#timer = timers.set(() => {
          this.#timer = undefined;
          this.#start();
        }, this.#backoff);
        this.#backoff = Math.min(this.#backoff * 2, BACKOFF.max);
        onFailure(failure ?? new Error(`the thread of queue ${queue} ended with ${code}`));
      });
    });
  }
}
