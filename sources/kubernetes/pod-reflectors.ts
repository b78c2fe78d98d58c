/**
 * Lists and watches the Pods of single namespaces, each with a reflector of its own. Logs, metrics and the status API see
 * one kind: its watch is open while all of them are open.
 */
import type { ObjectSink, SourceLog } from '../source.ts';
import type { Reflector, ReflectorOptions } from './reflector.ts';
import { podsIn, type ResourceObserver } from './resources.ts';

interface Watched {
  readonly reflector: Reflector;
  readonly stop: AbortController;
}

interface PodReflectorsOptions {
  /** Creates a reflector with these options, and the options common to all reflectors of the source. */
  readonly create: (
    options: Pick<ReflectorOptions, 'resource' | 'sink' | 'observer' | 'log' | 'onForbidden'>,
  ) => Reflector;
  readonly sink: ObjectSink;
  readonly observer: ResourceObserver | undefined;
  readonly log: SourceLog;
  /** Ends all watches. */
  readonly signal: AbortSignal;
}

export class PodReflectors {
  readonly #options: PodReflectorsOptions;
  readonly #namespaces = new Map<string, Watched>();
  /** Namespaces without an open watch. */
  readonly #closed = new Set<string>();
  /** Namespaces that were not up to date since the last report for all namespaces. */
  readonly #behind = new Set<string>();
  /** Reflectors that run, or are about to end. */
  readonly #running = new Set<Promise<void>>();

  constructor(options: PodReflectorsOptions) {
    this.#options = options;
  }

  *reflectors(): Iterable<Reflector> {
    for (const { reflector } of this.#namespaces.values()) yield reflector;
  }

  /** Begins to watch the Pods of a namespace that is not watched. See `PodWatches`. */
  begin(namespace: string, onForbidden: () => void): void {
    const stop = new AbortController();
    const signal = AbortSignal.any([this.#options.signal, stop.signal]);
    this.#closed.add(namespace);
    this.#behind.add(namespace);
    const reflector = this.#options.create({
      resource: podsIn(namespace),
      sink: this.#sink(namespace, stop.signal),
      observer: this.#observer(namespace, stop.signal),
      log: withNamespace(this.#options.log, namespace),
      onForbidden: () => {
        if (!stop.signal.aborted) onForbidden();
      },
    });
    this.#namespaces.set(namespace, { reflector, stop });
    const running = reflector.run(signal);
    this.#running.add(running);
    // A rejection is a bug: leave it unhandled, so that it ends the process.
    void running.then(() => this.#running.delete(running));
  }

  /** Delivers nothing more for a namespace. */
  end(namespace: string): void {
    this.#namespaces.get(namespace)?.stop.abort();
    if (!this.#namespaces.delete(namespace)) return;
    this.#closed.delete(namespace);
    this.#behind.delete(namespace);
    if (this.#namespaces.size === 0) this.#options.observer?.notInstalled('Pod');
    else this.#reportOpen();
  }

  /** Resolves when all reflectors have ended, after `signal`. */
  async ended(): Promise<void> {
    await Promise.all(this.#running);
  }

  /** A sink for one namespace: a response that is being read may still deliver objects after the end of the watch. */
  #sink(namespace: string, ended: AbortSignal): ObjectSink {
    const { sink } = this.#options;
    return {
      upsert: (object) => {
        if (!ended.aborted) sink.upsert(object);
      },
      remove: (kind, key) => {
        if (!ended.aborted) sink.remove(kind, key);
      },
      synced: (kind) => {
        if (!ended.aborted) sink.synced(kind, namespace);
      },
    };
  }

  #observer(namespace: string, ended: AbortSignal): ResourceObserver {
    const { observer } = this.#options;
    return {
      watchOpen: (_, isOpen) => {
        if (ended.aborted) return;
        if (isOpen) this.#closed.delete(namespace);
        else this.#closed.add(namespace);
        this.#reportOpen();
      },
      upToDate: () => {
        if (!ended.aborted) this.#reportUpToDate(namespace);
      },
      notInstalled: () => {},
      watchStalled: (kind) => observer?.watchStalled(kind),
    };
  }

  #reportOpen(): void {
    this.#options.observer?.watchOpen('Pod', this.#closed.size === 0);
  }

  /** Reports when each namespace was up to date since the last report: the others must not hide one that is behind. */
  #reportUpToDate(namespace: string): void {
    this.#behind.delete(namespace);
    if (this.#behind.size > 0) return;
    for (const each of this.#namespaces.keys()) this.#behind.add(each);
    this.#options.observer?.upToDate('Pod');
  }
}

function withNamespace(log: SourceLog, namespace: string): SourceLog {
  return {
    info: (details, message) => log.info({ ...details, namespace }, message),
    warn: (details, message) => log.warn({ ...details, namespace }, message),
  };
}
