/** One open watch, and whether it is silent. */
import type { WatchStream } from './session.ts';

export interface LiveWatchOptions {
  readonly stream: WatchStream;
  /** Called for each event, in order; what it throws ends the watch. */
  readonly onEvent: (event: unknown) => void;
  /** Milliseconds without any event after which the watch counts as silent. */
  readonly silenceMs: () => number;
  /** Called when the watch is closed or has ended. */
  readonly onClose: () => void;
}

/** A watch that ends sooner, in milliseconds, and has brought nothing, was of no use. As client-go. */
const VERY_SHORT_WATCH_MS = 1000;

/**
 * A watch that is open, and is read in the background until it ends or is closed.
 *
 * Silence is no failure: a kube-apiserver sends bookmarks of a kind only once its watch cache has seen
 * something of it. But a connection that has died without a word is silent too.
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

  /** Whether it has brought an event that was taken; one that says what went wrong is none. */
  get hasEvents(): boolean {
    return this.#events > 0;
  }

  /** It ended as soon as it was open, without any event: nobody can say that it worked. */
  get endedAtOnce(): boolean {
    return this.#endedAtOnce;
  }

  /** What made it end, if it has ended other than in due form. */
  get failure(): unknown {
    return this.#failure;
  }

  /** Resolves with the next change of the state. */
  get stateChanged(): Promise<void> {
    return this.#stateChanged.promise;
  }

  /**
   * Resolves when the watch is silent, or was ended by the server in due form.
   * @throws what made the watch end, or what `onEvent` threw.
   */
  async untilSilentOrEnded(): Promise<void> {
    while (this.#state === 'live') await this.stateChanged;
    if (this.#failure !== undefined) throw this.#failure;
  }

  /** Treats the watch as silent from now on until it brings something. */
  markSilent(): void {
    if (this.#state === 'live') this.#setState('silent');
  }

  /** No event is handed on after this. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#options.stream.close();
    this.#options.onClose();
  }

  async #read(): Promise<void> {
    const { stream, onEvent } = this.#options;
    try {
      for await (const event of stream.events) {
        if (this.#closed) break;
        if (this.#state === 'silent') this.#setState('live');
        onEvent(event);
        this.#events++;
        this.#waitForSilence();
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
