import type { ObjectSink, Source } from '../store.ts';
import { BACKOFF, type Backoff } from './backoff.ts';
import { type ClusterOptions, loadClusterConfig } from './config.ts';
import { type OnProblem, Reflector, type Resource, type SourceLog } from './reflector.ts';
import {
  createOpenSession,
  lastPart,
  type OpenSession,
  type SessionObserver,
  type Timeouts,
} from './session.ts';

export interface KubernetesSourceOptions extends ClusterOptions {
  readonly resources: readonly Resource[];
  readonly sink: ObjectSink;
  readonly onProblem: OnProblem;
  readonly log: SourceLog;
  readonly backoff?: Backoff;
  readonly timeouts?: Timeouts;
  /** Hears of each request and watch. */
  readonly observer?: SessionObserver;
  /** Told once how to open sessions, for what else is asked of the API server. */
  readonly onSessions?: (open: OpenSession) => void;
}

/**
 * The API server as a source. `start` waits for an API server that cannot be reached for as long as it
 * takes.
 * @throws ClusterConfigError from `start`.
 */
export function createKubernetesSource(options: KubernetesSourceOptions): Source {
  return new KubernetesSource(options);
}

class KubernetesSource implements Source {
  readonly #options: KubernetesSourceOptions;
  readonly #stop = new AbortController();
  #reflectors: readonly Reflector[] = [];
  #running: Promise<unknown> = Promise.resolve();

  constructor(options: KubernetesSourceOptions) {
    this.#options = options;
  }

  async start(): Promise<void> {
    const {
      sink,
      onProblem,
      log,
      resources,
      timeouts,
      observer,
      backoff = BACKOFF,
    } = this.#options;
    const open = createOpenSession(await loadClusterConfig(this.#options), timeouts, observer);
    this.#options.onSessions?.(open);
    for (const { paths, optional } of resources) {
      // Of what need not be installed, that nobody watches it is no news.
      if (optional !== true) observer?.watching(lastPart(paths[0]), false);
    }
    const { promise: synced, resolve } = Promise.withResolvers<void>();
    const unsynced = new Set(resources.map(({ kind }) => kind));
    const counting: ObjectSink = {
      upsert: (object) => sink.upsert(object),
      remove: (kind, key) => sink.remove(kind, key),
      synced: (kind) => {
        sink.synced(kind);
        unsynced.delete(kind);
        if (unsynced.size === 0) resolve();
      },
    };
    this.#reflectors = resources.map((resource) => {
      const onAbsent = () => observer?.absent(lastPart(resource.paths[0]));
      const options = { resource, open, sink: counting, onProblem, onAbsent, log, backoff };
      return new Reflector(options);
    });
    this.#running = Promise.all(this.#reflectors.map((each) => each.run(this.#stop.signal)));
    await Promise.race([synced, this.#running]);
    // The race counts as a handler of every rejection; later ones are bugs and must be loud.
    void this.#running.then(() => log.info({}, 'the Kubernetes source has stopped'));
  }

  async stop(): Promise<void> {
    this.#stop.abort();
    await this.#running;
  }

  unreadable(): ReadonlyMap<string, number> {
    const some = this.#reflectors.filter(({ unreadable }) => unreadable > 0);
    return new Map(some.map(({ kind, unreadable }) => [kind, unreadable]));
  }
}
