/** The source with its own API-server double, and a record of its calls, waits and log messages. */
import type { Kind, ServingKind } from '../../../api/objects.ts';
import type { UnreadableObject } from '../../../sources/kubernetes/informer-store.ts';
import type { Resource } from '../../../sources/kubernetes/resources.ts';
import { servingResources } from '../../../sources/kubernetes/resources.ts';
import type { Timeouts } from '../../../sources/kubernetes/session.ts';
import {
  KubernetesSource,
  type KubernetesSourceOptions,
} from '../../../sources/kubernetes/source.ts';
import type { PodWatches, Source, SourceFault } from '../../../sources/source.ts';
import { WatchActivity } from '../../../status/watch-activity.ts';
import {
  ApiServerDouble,
  type DoubleOptions,
  type RecordedRequest,
} from '../../api-server/double.ts';
import type { Manifest } from '../../e2e/manifests.ts';
import { RecordingSink, until } from '../recording-sink.ts';

/** Long enough for a slow machine; tests of silence wait this long. */
export const PATIENT: Timeouts = {
  credentials: 10_000,
  response: 10_000,
  list: 10_000,
  silence: 10_000,
};
/** For tests in which a server does not respond. */
export const IMPATIENT: Timeouts = { credentials: 300, response: 300, list: 300, silence: 300 };

/** `services` of `/api/v1/services`. */
export const lastPart = (path: string) => path.slice(path.lastIndexOf('/') + 1);

export const RESOURCE: Readonly<Record<ServingKind, string>> = {
  Service: 'services',
  EndpointSlice: 'endpointslices',
  Node: 'nodes',
};

export interface SourceFixtureOptions extends DoubleOptions {
  readonly timeouts?: Timeouts;
  readonly sink?: RecordingSink;
  /** By default the resources for serving Services. */
  readonly resources?: readonly Resource[];
  /** Used instead of `--master`. */
  readonly cluster?: Pick<KubernetesSourceOptions, 'kubeconfig' | 'master' | 'configPollMs'>;
}

export class SourceFixture {
  readonly double: ApiServerDouble;
  readonly sink: RecordingSink;
  readonly problems: string[] = [];
  /** The object of each problem, if its name can be read. */
  readonly unreadable: (UnreadableObject | undefined)[] = [];
  /** Number of failures of each reflector. */
  readonly failures: Record<string, number> = { Service: 0, EndpointSlice: 0, Node: 0 };
  /** Milliseconds that the reflector of Services would have waited. */
  readonly waits: number[] = [];
  /** Milliseconds that any reflector would have waited. */
  readonly delays: number[] = [];
  /** Waits do not end by themselves, only early. */
  holdDelays = false;
  /** Kinds that were reported as not installed. */
  readonly notInstalled: string[] = [];
  /** Kinds whose watch was reported as open. */
  readonly watched = new Set<string>();
  readonly #activity = new WatchActivity();
  /** Milliseconds added to the clock of the source. */
  clockOffset = 0;
  /** HTTP status of each response; undefined without a response. */
  readonly codes: (number | undefined)[] = [];
  /** Kinds whose watch was reported as stalled. */
  readonly stalled: string[] = [];
  /** How often Services were reported as up to date. */
  upToDateCount = 0;
  /** Log messages, with their kind. */
  readonly logged: string[] = [];
  /** The hints of log messages. */
  readonly hints: string[] = [];
  readonly #options: SourceFixtureOptions;
  #source: Source | undefined;
  started: Promise<void> = Promise.resolve();

  constructor(options: SourceFixtureOptions = {}) {
    this.#options = options;
    this.double = new ApiServerDouble(options);
    this.sink = options.sink ?? new RecordingSink();
  }

  /** Watches of Pods of single namespaces. The source must have been started. */
  get podWatches(): PodWatches {
    const watches = this.#source?.podWatches;
    if (watches === undefined) throw new TypeError('the source is not started');
    return watches;
  }

  /** Starts the source. The double must listen already. */
  start(): void {
    const log = (
      { kind, waitMs, hint }: { kind?: Kind; waitMs?: number; hint?: string },
      message: string,
    ) => {
      this.logged.push(kind === undefined ? message : `${kind}: ${message}`);
      if (hint !== undefined) this.hints.push(hint);
      if (kind === undefined || waitMs === undefined) return;
      this.failures[kind] = (this.failures[kind] ?? 0) + 1;
      if (kind === 'Service') this.waits.push(waitMs);
    };
    this.#source = new KubernetesSource({
      master: this.double.url,
      ...this.#options.cluster,
      resources: this.#options.resources ?? servingResources('node-1'),
      sink: this.sink,
      onProblem: ({ message }, object) => {
        this.problems.push(message);
        this.unreadable.push(object);
      },
      log: { info: log, warn: log },
      observer: this.#activity.observing({
        request: ({ code }) => this.codes.push(code),
        watchOpen: (kind, isOpen) => {
          if (isOpen) this.watched.add(kind);
          else this.watched.delete(kind);
        },
        upToDate: (kind) => {
          if (kind === 'Service') this.upToDateCount++;
        },
        notInstalled: (kind) => this.notInstalled.push(kind),
        watchStalled: (kind) => this.stalled.push(kind),
      }),
      timeouts: this.#options.timeouts ?? PATIENT,
      backoff: {
        random: () => 0.5,
        now: () => performance.now() + this.clockOffset,
        delay: (milliseconds, signal) => {
          this.delays.push(milliseconds);
          if (!this.holdDelays) return new Promise(setImmediate);
          return new Promise((resolve) => signal.addEventListener('abort', () => resolve()));
        },
      },
    });
    this.started = this.#source.start();
    this.started.catch(() => undefined); // tests that expect an error await it
  }

  /** Starts, and waits until everything is listed and the given resources are watched. */
  async startAndWatch(watched: readonly string[] = Object.values(RESOURCE)): Promise<void> {
    this.start();
    await this.started;
    for (const resource of watched) {
      await until(`${resource} are watched`, () => this.double.watching(resource) === 1);
    }
  }

  async stop(): Promise<void> {
    try {
      await this.#source?.stop();
    } finally {
      await this.double.close();
    }
  }

  /** Kinds that `portwide status` reports as down, once they are down for long enough. */
  watchesDown(): string[] {
    return [...this.#activity.kinds].flatMap(([kind, { isOpen }]) => (isOpen ? [] : [kind]));
  }

  faultsNow(): readonly SourceFault[] {
    return [...(this.#source?.faults() ?? [])];
  }

  /** Number of objects that currently cannot be read, by kind. */
  unreadableNow(): Record<string, number> {
    return Object.fromEntries(this.#source?.unreadable() ?? []);
  }

  /**
   * Requests for Services. A `check` requests the object that changed last, a `comparison` the
   * metadata of all objects.
   */
  requests(
    verb: 'list' | 'watch' | 'check' | 'comparison',
    resource = 'services',
  ): readonly RecordedRequest[] {
    return this.double.requests().filter((request) => {
      const isCheck = request.verb === 'list' && request.query.limit === '1';
      const purpose = request.metadataOnly ? 'comparison' : isCheck ? 'check' : request.verb;
      return purpose === verb && request.resource === resource;
    });
  }

  /** Waits for the given number of requests for Services, and returns the last request. */
  async waitForRequest(verb: 'list' | 'watch', times: number): Promise<RecordedRequest> {
    await until(`${verb} ${times} of Services`, () => this.requests(verb).length >= times);
    const request = this.requests(verb)[times - 1];
    if (request === undefined) throw new RangeError('no such request');
    return request;
  }

  /** Names and ports of the Services in the sink. */
  ports(): Record<string, number | undefined> {
    const names = [...this.sink.objects.values()].filter(({ kind }) => kind === 'Service');
    return Object.fromEntries(names.map(({ name }) => [name, this.sink.port(name)]).sort());
  }

  /** Waits until the sink has exactly these Services with these ports. */
  async waitForServices(ports: Readonly<Record<string, number>>): Promise<void> {
    const expected = JSON.stringify(ports);
    await until(`there are ${expected}`, () => JSON.stringify(this.ports()) === expected);
  }
}

export function service(name: string, port: number): Manifest {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name, namespace: 'default' },
    spec: { clusterIP: '10.0.0.1', clusterIPs: ['10.0.0.1'], ports: [{ port }] },
  };
}
