/** The source with an API server of its own, and what it was told, waited for and logged. */
import type { Kind, ServingKind } from '../../../api/objects.ts';
import type { UnreadableObject } from '../../../sources/kubernetes/informer-store.ts';
import type { Resource } from '../../../sources/kubernetes/resources.ts';
import { servingResources } from '../../../sources/kubernetes/resources.ts';
import type { Timeouts } from '../../../sources/kubernetes/session.ts';
import {
  KubernetesSource,
  type KubernetesSourceOptions,
} from '../../../sources/kubernetes/source.ts';
import type { Source } from '../../../sources/source.ts';
import {
  ApiServerDouble,
  type DoubleOptions,
  type RecordedRequest,
} from '../../api-server/double.ts';
import type { Manifest } from '../../e2e/manifests.ts';
import { RecordingSink, until } from '../recording-sink.ts';

/** Long enough for a slow machine; faults that are about silence have to wait for it. */
export const PATIENT: Timeouts = {
  credentials: 10_000,
  answer: 10_000,
  list: 10_000,
  silence: 10_000,
};
/** For tests in which somebody is silent. */
export const IMPATIENT: Timeouts = { credentials: 300, answer: 300, list: 300, silence: 300 };

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
  /** By default what Services are served from. */
  readonly resources?: readonly Resource[];
  /** Instead of `--master`. */
  readonly cluster?: Pick<KubernetesSourceOptions, 'kubeconfig' | 'master' | 'configPollMs'>;
}

export class SourceFixture {
  readonly double: ApiServerDouble;
  readonly sink: RecordingSink;
  readonly problems: string[] = [];
  /** What each of the problems is about, as far as it can be named. */
  readonly unreadable: (UnreadableObject | undefined)[] = [];
  /** Failures of each reflector so far. */
  readonly failures: Record<string, number> = { Service: 0, EndpointSlice: 0, Node: 0 };
  /** Milliseconds that the reflector of Services would have waited. */
  readonly waits: number[] = [];
  /** Milliseconds that any reflector would have waited. */
  readonly delays: number[] = [];
  /** Waits end only by what ends them early. */
  holdDelays = false;
  /** Resources that were told to be of no CRD that is installed. */
  readonly notInstalled: string[] = [];
  /** Resources of which a watch is open, as metrics tell it. */
  readonly watched = new Set<string>();
  /** Milliseconds that the clock of the source is ahead of this machine's. */
  clockOffset = 0;
  /** HTTP status of each answer; undefined where there was none. */
  readonly codes: (number | undefined)[] = [];
  /** Resources that changed without a word of their watch, as metrics tell it. */
  readonly stalled: string[] = [];
  /** How often the source said of Services that it knows them as they are now. */
  upToDateCount = 0;
  /** What was logged, with the kind that it was about. */
  readonly logged: string[] = [];
  readonly #options: SourceFixtureOptions;
  #source: Source | undefined;
  started: Promise<void> = Promise.resolve();

  constructor(options: SourceFixtureOptions = {}) {
    this.#options = options;
    this.double = new ApiServerDouble(options);
    this.sink = options.sink ?? new RecordingSink();
  }

  /** Starts the source. The server has to listen by then, and goes on to. */
  start(): void {
    const log = ({ kind, waitMs }: { kind?: Kind; waitMs?: number }, message: string) => {
      this.logged.push(kind === undefined ? message : `${kind}: ${message}`);
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
      observer: {
        request: ({ code }) => this.codes.push(code),
        watching: (kind, isOpen) => {
          if (isOpen) this.watched.add(kind);
          else this.watched.delete(kind);
        },
        current: (kind) => {
          if (kind === 'Service') this.upToDateCount++;
        },
        absent: (kind) => this.notInstalled.push(kind),
        watchStalled: (kind) => this.stalled.push(kind),
      },
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
    this.started.catch(() => undefined); // awaited by the tests that are about it
  }

  /** Starts, and waits until everything is listed, and these are watched. */
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

  /** How many objects cannot be read now, by kind. */
  unreadableNow(): Record<string, number> {
    return Object.fromEntries(this.#source?.unreadable() ?? []);
  }

  /**
   * What was asked about Services. A `check` is the request for the object that changed last, a
   * `comparison` that for the metadata of all objects.
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

  /** Waits until Services have been asked for so many times, and gives the last request. */
  async waitForRequest(verb: 'list' | 'watch', times: number): Promise<RecordedRequest> {
    await until(`${verb} ${times} of Services`, () => this.requests(verb).length >= times);
    const request = this.requests(verb)[times - 1];
    if (request === undefined) throw new RangeError('no such request');
    return request;
  }

  /** Names and ports of the Services that the sink has. */
  ports(): Record<string, number | undefined> {
    const names = [...this.sink.objects.values()].filter(({ kind }) => kind === 'Service');
    return Object.fromEntries(names.map(({ name }) => [name, this.sink.port(name)]).sort());
  }

  /** Waits until the sink has these Services with these ports, and no others. */
  async waitForServices(ports: Readonly<Record<string, number>>): Promise<void> {
    const wanted = JSON.stringify(ports);
    await until(`there are ${wanted}`, () => JSON.stringify(this.ports()) === wanted);
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
