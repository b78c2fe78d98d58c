/** Asks the agent again and again for what the page shows, and only while it is visible. */

/** Milliseconds between an answer and the next request, or longer: as long as the answer took. */
const INTERVAL = 1000;
/** Nothing changed since the last answer. */
const NOT_MODIFIED = 304;
/** The agent makes requests wait that would hold up syncs. */
const BUSY = 503;
/** Milliseconds after which a request without an answer is given up. */
const TIMEOUT = 10_000;

/**
 * @typedef {object} Need
 * @property {string} path
 * @property {number} [interval]
 * @property {boolean} [isOnce] Once answered, it is asked for only by `again()`.
 */

/**
 * @typedef {object} PollerOptions
 * @property {(path: string, value: any) => void} answered
 * @property {(path: string, value: any) => void} unchanged The last answer is still true.
 * @property {(path: string, error: string) => void} refused The agent answered with an error.
 * @property {() => void} busy The agent answered that it has no time; the last answer stays.
 * @property {() => void} lost The agent did not answer.
 * @property {() => boolean} isVisible
 * @property {(path: string, options: { signal: AbortSignal, headers: Record<string, string> }) => Promise<Response>} [fetch]
 * @property {Timers} [timers]
 */

/** @typedef {{ stop: AbortController, interval: number, isOnce: boolean, isDone?: boolean, timer?: unknown, last?: { etag: string, value: any } }} Poll */

/**
 * @typedef {object} Timers
 * @property {() => number} now in milliseconds.
 * @property {(callback: () => void, milliseconds: number) => unknown} set
 * @property {(handle: unknown) => void} clear
 */

/** @type {Timers} */
const BROWSER_TIMERS = {
  now: () => performance.now(),
  set: (callback, milliseconds) => setTimeout(callback, milliseconds),
  clear: (handle) => clearTimeout(/** @type {number | undefined} */ (handle)),
};

export class Poller {
  #options;
  #timers;
  #fetch;
  /** @type {Map<string, Poll>} */
  #polls = new Map();

  /** @param {PollerOptions} options */
  constructor(options) {
    this.#options = options;
    this.#timers = options.timers ?? BROWSER_TIMERS;
    this.#fetch = options.fetch ?? ((path, options) => fetch(path, options));
  }

  /** Replaces what to ask for. Requests for other paths are aborted. @param {readonly Need[]} needs */
  show(needs) {
    const paths = new Set(needs.map(({ path }) => path));
    for (const [path, { stop, timer }] of this.#polls) {
      if (paths.has(path)) continue;
      this.#timers.clear(timer);
      stop.abort();
      this.#polls.delete(path);
    }
    for (const { path, interval = INTERVAL, isOnce = false } of needs) {
      if (this.#polls.has(path)) continue;
      this.#polls.set(path, { stop: new AbortController(), interval, isOnce });
      void this.#ask(path);
    }
  }

  /** Asks for everything now. Call it when the page becomes visible. */
  resume() {
    for (const [path, poll] of this.#polls) {
      // Without a timer a request is in flight, or none is needed.
      if (poll.timer === undefined) continue;
      this.#timers.clear(poll.timer);
      delete poll.timer;
      void this.#ask(path);
    }
  }

  /** Asks anew for what is asked for once. @param {string} path */
  again(path) {
    const poll = this.#polls.get(path);
    if (!poll?.isDone) return;
    poll.isDone = false;
    void this.#ask(path);
  }

  /** @param {string} path */
  async #ask(path) {
    const poll = this.#polls.get(path);
    if (poll === undefined) return;
    const { signal } = poll.stop;
    const began = this.#timers.now();
    let report = () => this.#options.lost();
    try {
      const response = await this.#fetch(path, {
        signal: AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT)]),
        headers: poll.last === undefined ? {} : { 'if-none-match': poll.last.etag },
      });
      const isUnchanged = response.status === NOT_MODIFIED && poll.last !== undefined;
      const body = isUnchanged ? poll.last?.value : await response.json();
      if (signal.aborted) return;
      const etag = response.headers.get('etag');
      poll.isDone = poll.isOnce && (response.ok || isUnchanged);
      if (!isUnchanged) delete poll.last;
      if (response.ok && etag !== null) poll.last = { etag, value: body };
      const message = response.ok ? '' : body?.error?.message;
      if (isUnchanged) report = () => this.#options.unchanged(path, body);
      else if (response.ok) report = () => this.#options.answered(path, body);
      else if (response.status === BUSY) report = () => this.#options.busy();
      else if (message !== undefined) report = () => this.#options.refused(path, message);
    } catch {
      if (signal.aborted) return;
    }
    if (!poll.isDone) this.#askAgain(poll, path, this.#timers.now() - began);
    // If it throws, the page has a fault: requests go on, and the agent did answer.
    report();
  }

  /** @param {Poll} poll @param {string} path @param {number} took duration of the last request. */
  #askAgain(poll, path, took) {
    poll.timer = this.#timers.set(
      () => {
        // A hidden page keeps the timer, which resume() finds.
        if (!this.#options.isVisible()) return;
        delete poll.timer;
        void this.#ask(path);
      },
      Math.max(poll.interval, took),
    );
  }
}
