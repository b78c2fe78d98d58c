/** Reads objects from the API server. */
import type { ObjectSink, Source, SourceFault, SourceLog } from '../source.ts';
import { RETRY_CLOCK, type RetryClock } from './backoff.ts';
import { type ClusterOptions, loadClusterConfig } from './config.ts';
import type { OnProblem } from './informer-store.ts';
import { Reflector } from './reflector.ts';
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
    this.#reflectors = resources.map((resource) => {
      const reflector: Reflector = new Reflector({
        resource,
        open,
        sink,
        onProblem,
        observer,
        // All resources share one etcd, so all reflectors must check their history.
        onEtcdRestored: () => this.#renewAll(reflector),
        log,
        backoff,
        timeouts,
      });
      return reflector;
    });
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
    await this.#running;
  }

  #renewAll(except?: Reflector): void {
    for (const each of this.#reflectors) if (each !== except) each.renew();
  }

  *faults(): Iterable<SourceFault> {
    for (const reflector of this.#reflectors) yield* reflector.faults();
  }

  unreadable(): ReadonlyMap<string, number> {
    const affected = this.#reflectors.filter(({ unreadable }) => unreadable > 0);
    return new Map(affected.map(({ kind, unreadable }) => [kind, unreadable]));
  }
}
