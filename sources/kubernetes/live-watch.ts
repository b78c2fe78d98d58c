/** Reads one open watch and detects its silence. */
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { WatchStream } from './session.ts';

export interface LiveWatchOptions {
  readonly stream: WatchStream;
  /** Called for each event, in order. An exception ends the watch. */
  readonly onEvent: (event: unknown) => void;
  /** Milliseconds without an event before the watch counts as silent. */
  readonly silenceMs: () => number;
  /** Called when the watch was closed or has ended. */
  readonly onClose: () => void;
}

/**
 * Milliseconds. A watch that ends earlier without an event is a "very short watch", as in
 * client-go.
 */
const VERY_SHORT_WATCH_MS = 1000;
/**
 * Milliseconds of events before the event loop gets a turn: one chunk of the response may have
 * dozens, and an event of an EndpointSlice with many endpoints takes milliseconds.
 */
const TURN_MS = 5;

/**
 * An open watch, read in the background until it ends or is closed.
 *
 * Silence is not a failure: a kube-apiserver sends bookmarks for a kind only after its watch cache
 * has received an event or a progress report for the kind. However, a watch whose connection broke
 * without a FIN or RST is silent too.
 */
export class LiveWatch {
  readonly #options: LiveWatchOptions;
  #state: 'live' | 'silent' | 'ended' = 'live';
  #closed = false;
  readonly #opened = performance.now();
  #events = 0;
  #endedAtOnce = false;
  #failure: unknown;
  #timer: NodeJS.Timeout | undefined;
  #stateChanged = Promise.withResolvers<void>();

  constructor(options: LiveWatchOptions) {
    this.#options = options;
    this.#waitForSilence();
    void this.#read();
  }

  get state(): 'live' | 'silent' | 'ended' {
    return this.#state;
  }

  /**
   * Whether the watch delivered an event that `onEvent` accepted. An ERROR event does not count.
   */
  get hasEvents(): boolean {
    return this.#events > 0;
  }

  /** Whether the watch ended within a second without any event: a very short watch. */
  get endedAtOnce(): boolean {
    return this.#endedAtOnce;
  }

  /** The error that ended the watch; undefined for a normal end. */
  get failure(): unknown {
    return this.#failure;
  }

  /** Resolves at the next change of the state. */
  get stateChanged(): Promise<void> {
    return this.#stateChanged.promise;
  }

  /**
   * Resolves when the watch is silent or the server ended it normally.
   * @throws the error that ended the watch, including errors of `onEvent`.
   */
  async untilSilentOrEnded(): Promise<void> {
    while (this.#state === 'live') await this.stateChanged;
    if (this.#failure !== undefined) throw this.#failure;
  }

  /** Treats the watch as silent until it delivers an event. */
  markSilent(): void {
    if (this.#state === 'live') this.#setState('silent');
  }

  /** Closes the watch. Afterwards `onEvent` is not called. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#options.stream.close();
    this.#options.onClose();
  }

  async #read(): Promise<void> {
    const { stream, onEvent } = this.#options;
    let turnEnd = performance.now() + TURN_MS;
    try {
      for await (const event of stream.events) {
        if (this.#closed) break;
        if (this.#state === 'silent') this.#setState('live');
        onEvent(event);
        this.#events++;
        this.#waitForSilence();
        if (performance.now() < turnEnd) continue;
        await nextTurn();
        turnEnd = performance.now() + TURN_MS;
      }
    } catch (error) {
      if (!this.#closed) this.#failure = error;
    }
    this.#endedAtOnce = !this.hasEvents && performance.now() - this.#opened < VERY_SHORT_WATCH_MS;
    this.close();
    this.#setState('ended');
  }

  #waitForSilence(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.markSilent(), this.#options.silenceMs());
  }

  #setState(state: 'live' | 'silent' | 'ended'): void {
    this.#state = state;
    const { resolve } = this.#stateChanged;
    this.#stateChanged = Promise.withResolvers<void>();
    resolve();
  }
}
