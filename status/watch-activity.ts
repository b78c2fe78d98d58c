/** Remembers the state of lists and watches of the API server, for the status API. */
import type { Kind } from '../api/objects.ts';
import type { SourceObserver } from '../sources/kubernetes/source.ts';

/** What is known about the watch of one kind. Times are milliseconds since 1970. */
export interface WatchState {
  readonly isOpen: boolean;
  /** Since when the watch is open or closed. */
  readonly since: number;
  /** When the objects were last known to be up to date; undefined before the first list. */
  readonly upToDate: number | undefined;
}

export class WatchActivity {
  readonly #now: () => number;
  readonly #kinds = new Map<Kind, WatchState>();
  #server: string | undefined;

  /** @param now milliseconds since 1970. */
  constructor(now: () => number = Date.now) {
    this.#now = now;
  }

  /** Host of the API server; undefined before the first request. */
  get server(): string | undefined {
    return this.#server;
  }

  /** The state of each kind; a kind whose CRD is not installed is missing. */
  get kinds(): ReadonlyMap<Kind, WatchState> {
    return this.#kinds;
  }

  /** Wraps an observer. Forwards all calls. */
  observing(observer: SourceObserver): SourceObserver {
    return {
      ...observer,
      request: (request) => {
        observer.request(request);
        this.#server = request.host;
      },
      watchOpen: (kind, isOpen) => {
        observer.watchOpen(kind, isOpen);
        const before = this.#kinds.get(kind);
        const since = before?.isOpen === isOpen ? before.since : this.#now();
        this.#kinds.set(kind, { isOpen, since, upToDate: before?.upToDate });
      },
      upToDate: (kind) => {
        observer.upToDate(kind);
        const before = this.#kinds.get(kind) ?? { isOpen: false, since: this.#now() };
        this.#kinds.set(kind, { ...before, upToDate: this.#now() });
      },
      notInstalled: (kind) => {
        observer.notInstalled(kind);
        this.#kinds.delete(kind);
      },
    };
  }
}
