/** Reads objects from the API server. */
import type { ObjectSink, PodWatches, Source, SourceFault, SourceLog } from '../source.ts';
import { RETRY_CLOCK, type RetryClock } from './backoff.ts';
import { type ClusterOptions, loadClusterConfig } from './config.ts';
import type { OnProblem } from './informer-store.ts';
import { PodReflectors } from './pod-reflectors.ts';
import { Reflector, type ReflectorOptions } from './reflector.ts';
import { ReloadingConfig } from './reloading-config.ts';
import type { Resource, ResourceObserver } from './resources.ts';
import { type OpenSession, type RequestObserver, TIMEOUTS, type Timeouts } from './session.ts';

/** Observes requests and watches, for metrics. */
export interface SourceObserver extends RequestObserver, ResourceObserver {}

export interface KubernetesSourceOptions extends ClusterOptions {
  readonly resources: readonly Resource[];
  readonly sink: ObjectSink;
  readonly onProblem: OnProblem;
  readonly log: SourceLog;
  readonly backoff?: RetryClock;
  readonly timeouts?: Timeouts;
  /** Observes each request and watch. */
  readonly observer?: SourceObserver;
  /** Milliseconds between checks of the kubeconfig for changes. */
  readonly configPollMs?: number;
  /** Called once with the function that opens sessions, for other requests to the API server. */
  readonly onSessions?: (open: OpenSession) => void;
}

/**
 * The kubelet takes up to a minute to update a mounted ConfigMap. Polling every 5 s adds little to
 * this delay.
 */
const CONFIG_POLL_MS = 5000;

/**
 * Lists and watches objects of the API server. `start` waits without a limit for an API server that
 * cannot be reached.
 * @throws ClusterConfigError from `start`.
 */
export class KubernetesSource implements Source {
  readonly #options: KubernetesSourceOptions;
  readonly #stop = new AbortController();
  #reflectors: readonly Reflector[] = [];
  /** undefined before `start`. */
  #pods: PodReflectors | undefined;
  #running: Promise<unknown> = Promise.resolve();

  constructor(options: KubernetesSourceOptions) {
    this.#options = options;
  }

  async start(): Promise<void> {
    const {
      timeouts = TIMEOUTS,
      backoff = RETRY_CLOCK,
      configPollMs = CONFIG_POLL_MS,
    } = this.#options;
    const { sink, onProblem, log, resources, observer, onSessions } = this.#options;
    const context = { timeouts, observer, log };
    const config = new ReloadingConfig(
      this.#options,
      context,
      await loadClusterConfig(this.#options),
    );
    const { open } = config;
    onSessions?.(open);
    const common = { open, sink, onProblem, observer, log, backoff, timeouts };
    const create = (own: Pick<ReflectorOptions, 'resource'> & Partial<ReflectorOptions>) => {
      const reflector: Reflector = new Reflector({
        ...common,
        // All resources share one etcd, so all reflectors must check their history.
        onEtcdRestored: () => this.#renewAll(reflector),
        ...own,
      });
      return reflector;
    };
    this.#reflectors = resources.map((resource) => create({ resource }));
    this.#pods = new PodReflectors({ create, sink, observer, log, signal: this.#stop.signal });
    config.watch(configPollMs, () => this.#renewAll(), this.#stop.signal);
    this.#running = Promise.all(this.#reflectors.map((each) => each.run(this.#stop.signal)));
    const synced = Promise.all(this.#reflectors.map((each) => each.synced));
    await Promise.race([synced, this.#running]);
    // Report a rejection after the race as an unhandled rejection: it is a bug and must not stay
    // silent.
    void this.#running.then(() => log.info({}, 'stopped watching the API server'));
  }

  async stop(): Promise<void> {
    this.#stop.abort();
    await Promise.all([this.#running, this.#pods?.ended()]);
  }

  readonly podWatches: PodWatches = {
    begin: (namespace, onForbidden) => {
      const all = this.#reflectors.find(({ kind }) => kind === 'Pod');
      if (all === undefined) this.#pods?.begin(namespace, onForbidden);
      else this.#deliverPods(all, namespace);
    },
    end: (namespace) => this.#pods?.end(namespace),
  };

  #deliverPods(all: Reflector, namespace: string): void {
    const { sink } = this.#options;
    for (const object of all.objects()) {
      if (object.kind === 'Pod' && object.namespace === namespace) sink.upsert(object);
    }
    if (all.isSynced) sink.synced('Pod', namespace);
  }

  *#allReflectors(): Iterable<Reflector> {
    yield* this.#reflectors;
    yield* this.#pods?.reflectors() ?? [];
  }

  #renewAll(except?: Reflector): void {
    for (const each of this.#allReflectors()) if (each !== except) each.renew();
  }

  *faults(): Iterable<SourceFault> {
    for (const reflector of this.#allReflectors()) yield* reflector.faults();
  }

  unreadable(): ReadonlyMap<string, number> {
    const counts = new Map<string, number>();
    for (const { kind, unreadable } of this.#allReflectors()) {
      if (unreadable > 0) counts.set(kind, (counts.get(kind) ?? 0) + unreadable);
    }
    return counts;
  }
}
