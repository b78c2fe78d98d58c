import type { Kind } from '../../api/objects.ts';
import type { ObjectSink, Source } from '../store.ts';
import { BACKOFF, type Backoff } from './backoff.ts';
import type { ClusterOptions } from './config.ts';
import { FollowedConfig } from './followed-config.ts';
import type { OnProblem } from './known-objects.ts';
import { Reflector, type Resource, type SourceLog } from './reflector.ts';
import { type OpenSession, type RequestObserver, TIMEOUTS, type Timeouts } from './session.ts';

/** Hears what becomes of requests, and of the watch of each kind, for metrics. */
export interface SourceObserver extends RequestObserver {
  /** Whether a watch is open, as far as that is known. */
  watching(kind: Kind, isOpen: boolean): void;
  /** A list was read, a watch brought something, or the server was asked and had nothing to bring. */
  current(kind: Kind): void;
  /** It is of a CRD that is not installed, so that nobody can watch it. */
  absent(kind: Kind): void;
  /** Objects of it had changed, and a watch that was open did not tell. */
  deaf(kind: Kind): void;
}

export interface KubernetesSourceOptions extends ClusterOptions {
  readonly resources: readonly Resource[];
  readonly sink: ObjectSink;
  readonly onProblem: OnProblem;
  readonly log: SourceLog;
  readonly backoff?: Backoff;
  readonly timeouts?: Timeouts;
  /** Hears of each request and watch. */
  readonly observer?: SourceObserver;
  /** Milliseconds between looks whether the kubeconfig was changed. */
  readonly configPollMs?: number;
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

/** A kubelet takes up to a minute to bring a changed ConfigMap to a file; this is little on top. */
const CONFIG_POLL_MS = 5000;

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
      timeouts = TIMEOUTS,
      observer,
      backoff = BACKOFF,
      configPollMs = CONFIG_POLL_MS,
    } = this.#options;
    const config = await FollowedConfig.load(this.#options, { timeouts, observer, log });
    const { open } = config;
    this.#options.onSessions?.(open);
    for (const { kind, optional } of resources) {
      // Of what need not be installed, that nobody watches it is no news.
      if (optional !== true) observer?.watching(kind, false);
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
      const { kind } = resource;
      const reflector: Reflector = new Reflector({
        resource,
        open,
        sink: counting,
        onProblem,
        log,
        backoff,
        timeouts,
        observer: {
          watching: (isOpen) => observer?.watching(kind, isOpen),
          current: () => observer?.current(kind),
          absent: () => observer?.absent(kind),
          deaf: () => observer?.deaf(kind),
          // What befell one resource has befallen all that are in the same etcd.
          historyChanged: () => this.#renewAll(reflector),
        },
      });
      return reflector;
    });
    config.watch(configPollMs, () => this.#renewAll(), this.#stop.signal);
    this.#running = Promise.all(this.#reflectors.map((each) => each.run(this.#stop.signal)));
    await Promise.race([synced, this.#running]);
    // The race counts as a handler of every rejection; later ones are bugs and must be loud.
    void this.#running.then(() => log.info({}, 'the Kubernetes source has stopped'));
  }

  async stop(): Promise<void> {
    this.#stop.abort();
    await this.#running;
  }

  #renewAll(but?: Reflector): void {
    for (const each of this.#reflectors) if (each !== but) each.renew();
  }

  unreadable(): ReadonlyMap<string, number> {
    const some = this.#reflectors.filter(({ unreadable }) => unreadable > 0);
    return new Map(some.map(({ kind, unreadable }) => [kind, unreadable]));
  }
}
