/**
 * Runs the inspection thread and restarts it after a failure. Starting the thread takes longer than
 * all other work for the first domain name, so the thread is started in advance. It idles while no
 * rule has a domain name.
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
  /**
   * @param reply Sends to the thread that sent the message; another thread may have replaced it
   * meanwhile.
   */
  readonly onMessage: (message: FromThread, reply: (message: ToThread) => void) => void;
  /** The thread ended or could not start. A restart follows. */
  readonly onFailure: (error: unknown) => void;
}

type ThreadSettings = Extract<ToThread, { readonly kind: 'settings' }>;

/** Milliseconds between restarts. Without a thread, packets bypass the queue. */
const BACKOFF = { first: 100, max: 30_000 };
/** Heap limit of the thread, which needs a few MiB. Its state is bounded. */
const HEAP_MIB = 128;

/** Next to this file, or next to the bundle that scripts/bundle.ts creates. */
const SCRIPT = new URL(
  import.meta.url.endsWith('.ts') ? './thread.ts' : './thread.mjs',
  import.meta.url,
);

/** Settings of an idle thread. */
const IDLE: ThreadSettings = { kind: 'settings', patterns: [], resolvers: [] };

export class QueueThread {
  readonly #options: QueueThreadOptions;
  readonly #counts = new Float64Array(
    new SharedArrayBuffer(COUNTER_NAMES.length * Float64Array.BYTES_PER_ELEMENT),
  );
  #settings: ThreadSettings | undefined;
  #worker: Worker | undefined;
  /** Resolves when the last thread has ended. */
  #ended: Promise<unknown> = Promise.resolve();
  #timer: unknown;
  #backoff = BACKOFF.first;

  constructor(options: QueueThreadOptions) {
    this.#options = options;
  }

  /** Starts the thread or changes its settings. */
  run(settings: Omit<ThreadSettings, 'kind'>): void {
    this.#set({ kind: 'settings', ...settings });
  }

  /**
   * Starts the thread without work. A failure, for example if the kernel lacks NFQUEUE, is neither
   * reported nor retried before `run`.
   */
  idle(): void {
    this.#set(IDLE);
  }

  /** Stops the thread. It accepts deferred packets; later packets bypass the queue. */
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

  /** Value of a counter since this object was created, over all threads. */
  count(what: CounterName): number {
    return this.#counts[COUNTER_NAMES.indexOf(what)] ?? 0;
  }

  #set(settings: ThreadSettings): void {
    this.#settings = settings;
    if (this.#worker !== undefined) this.#worker.postMessage(settings);
    // Wait for the end of the last thread, which still owns the queue.
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
        const [openDescriptor = NO_DESCRIPTOR] = descriptor;
        if (openDescriptor !== NO_DESCRIPTOR) closeQueueDescriptor(openDescriptor);
        resolve();
        if (this.#worker !== worker) return;
        this.#worker = undefined;
        if (this.#settings === IDLE) return;
        this.#timer = timers.set(() => {
          this.#timer = undefined;
          this.#start();
        }, this.#backoff);
        this.#backoff = Math.min(this.#backoff * 2, BACKOFF.max);
        onFailure(
          failure ??
            new Error(`the inspection thread of NFQUEUE ${queue} exited with code ${code}`),
        );
      });
    });
  }
}
