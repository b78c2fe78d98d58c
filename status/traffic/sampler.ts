/** Measures the traffic of Services while a client looks, and does nothing otherwise. */
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { DetailedEntry } from '../../netlink/conntrack/conntrack.ts';
import { BackgroundSlice } from '../../sync/precedence.ts';
import type { Timers } from '../../sync/timers.ts';
import type { TrafficSample } from '../api/traffic.ts';
import { ConnectionTable } from './connection-table.ts';
import { CounterCache } from './counter-cache.ts';
import { endpointOfEntry, protocolName, routeOfEntry } from './flow-entry.ts';
import type { LiveIndex } from './live-index.ts';
import { pollSubscription } from './poll.ts';
import { TrafficCounters } from './traffic-counters.ts';

/** The kernel's conntrack, as the sampler needs it. */
export interface SampledConntrack {
  /** Subscribes to the ends of connections. */
  openEnds(): {
    readonly dropped: number;
    /** Reads waiting events. An entry is valid only during the call. @returns whether events may be left. */
    read(onEnd: (entry: DetailedEntry) => void): boolean;
    /** Keeps one of so many events from now on. */
    sample(oneOf: number): void;
    close(): void;
  };
  /** Visits the entries of both families. An entry is valid only during the call. */
  visit(visit: (entry: DetailedEntry) => void): Promise<void>;
  isCounting(): Promise<boolean>;
}

export interface SamplerOptions {
  readonly index: LiveIndex;
  readonly conntrack: SampledConntrack;
  /** Whether node ports are served on an address. */
  readonly isNodeAddress: (address: string) => boolean;
  readonly timers: Timers;
  /** Milliseconds since 1970. */
  readonly now: () => number;
  /** CPU time of this process in milliseconds. */
  readonly cpu: () => number;
  /** Called for a failed sample; the next one is made anyway. */
  readonly onError: (error: unknown) => void;
}

/** Milliseconds without a look until sampling stops. */
const IDLE_MS = 15_000;
/** Milliseconds between two reads of events: few wake-ups, and the receive buffer lasts for longer. */
const READ_MS = 250;
/** Samples until the cache finds a node port by the current addresses of the node. */
const CACHED_SAMPLES = 20;
/**
 * Ends of connections a second up to which all are read: 10,000 take 2 to 4 % of a core. Above this rate a random part of
 * them is read, and each stands for several.
 */
const MAX_ENDS = 2500;
/**
 * Ends to read in a second at most when a part is read: a quarter of the CPU time, for twice the error of an estimate.
 */
const MAX_SAMPLED_ENDS = 625;
const RATE_MS = 1000;
const MIN_INTERVAL_MS = 1000;
const MAX_INTERVAL_MS = 60_000;
/** The second sample has the first rates, for which a client waits. */
const FIRST_INTERVAL_MS = 1000;
/** Share of a core that dumps may take. With more than about 50,000 connections they take more: the longest interval is fixed. */
const CPU_SHARE = 0.003;

/** What is measured, and when. */
export interface TrafficView {
  readonly counters: TrafficCounters;
  readonly sample: TrafficSample;
}

/** Everything that exists while a client looks. */
interface Session {
  readonly counters: TrafficCounters;
  readonly cache: CounterCache;
  readonly connections: ConnectionTable<DetailedEntry>;
  readonly ends: ReturnType<SampledConntrack['openEnds']>;
  /** Number of samples. */
  samples: number;
  /** Ends read since the last change of `weight`, and when that was. */
  read: number;
  weighedAt: number;
  /** Number of ends that one which is read stands for, and the largest so far. */
  weight: number;
  maxWeight: number;
  stopReading: () => void;
  isOver: boolean;
  /** Times of the first and the latest sample. */
  since: number;
  sampledAt: number;
  intervalSeconds: number | null;
  countsBytes: boolean;
  timer: unknown;
}

/** Samples conntrack from the first look until 15 s after the last one. */
export class TrafficSampler {
  readonly #options: SamplerOptions;
  #session: Promise<Session> | undefined;
  #lastLook = 0;

  constructor(options: SamplerOptions) {
    this.#options = options;
  }

  /** Whether conntrack is being sampled. */
  get isRunning(): boolean {
    return this.#session !== undefined;
  }

  /**
   * The latest sample. The first look waits for it.
   * @throws NetlinkError if conntrack cannot be read.
   */
  async look(): Promise<TrafficView> {
    this.#lastLook = this.#options.timers.now();
    if (this.#session === undefined) {
      const starting = this.#start();
      this.#session = starting;
      starting.catch(() => {
        if (this.#session === starting) this.#session = undefined;
      });
    }
    const session = await this.#session;
    return { counters: session.counters, sample: sampleOf(session) };
  }

  /** Stops sampling. */
  async close(): Promise<void> {
    await this.#stop();
  }

  async #start(): Promise<Session> {
    const { index: live, conntrack, isNodeAddress, timers, now } = this.#options;
    const destinations = { index: await live.acquire(), isNodeAddress };
    const counters = new TrafficCounters();
    const { index } = destinations;
    let changes = index.changes;
    const cache = new CounterCache((entry) => {
      const route = routeOfEntry(entry, destinations);
      if (route === undefined) return undefined;
      const port = `${protocolName(entry.protocol)}/${entry.origDstPort}`;
      return counters.of(route.serviceKey, endpointOfEntry(entry, route), port);
    });
    const connections = new ConnectionTable<DetailedEntry>((entry) => {
      if (index.changes !== changes) {
        changes = index.changes;
        cache.clear();
      }
      return cache.find(entry);
    });
    let ends: Session['ends'];
    try {
      ends = conntrack.openEnds();
    } catch (error) {
      live.release();
      throw error;
    }
    const session: Session = {
      counters,
      cache,
      connections,
      ends,
      samples: 0,
      read: 0,
      weighedAt: timers.now(),
      weight: 1,
      maxWeight: 1,
      stopReading: () => {},
      isOver: false,
      since: now(),
      sampledAt: now(),
      intervalSeconds: null,
      countsBytes: false,
      timer: undefined,
    };
    session.stopReading = pollSubscription(timers, READ_MS, () => this.#read(session));
    try {
      await this.#sample(session, true);
      this.#schedule(session, FIRST_INTERVAL_MS);
      return session;
    } catch (error) {
      this.#end(session);
      throw error;
    }
  }

  /** @returns whether events may be left. */
  #read(session: Session): boolean {
    if (this.#options.timers.now() - this.#lastLook >= IDLE_MS) {
      void this.#stop();
      return false;
    }
    try {
      const isLeft = readEnds(session);
      if (!isLeft) weigh(session, this.#options.timers.now());
      return isLeft;
    } catch (error) {
      this.#options.onError(error);
      return false;
    }
  }

  /** @returns milliseconds until the next sample. */
  async #sample(session: Session, isFirst: boolean): Promise<number> {
    const { conntrack, now, cpu } = this.#options;
    const { connections, counters } = session;
    const startedAt = now();
    const cpuBefore = cpu();
    session.countsBytes = await conntrack.isCounting();
    connections.beginDump();
    await conntrack.visit((entry) => connections.seen(entry));
    // Connections that ended during the dump have their events in the buffer by now.
    while (readEnds(session)) await nextTurn();
    const slice = new BackgroundSlice();
    for (const _ of connections.endDump()) if (slice.isOver()) await slice.yield();
    // A connection that opens during a dump is in it or not: on average the dump shows its middle.
    const at = (startedAt + now()) / 2;
    const seconds = (at - session.sampledAt) / 1000;
    const forgotten = counters.endSample(isFirst ? undefined : seconds);
    // Counters that were forgotten must not be found again. Node addresses change rarely.
    session.samples += 1;
    if (forgotten > 0 || session.samples % CACHED_SAMPLES === 0) session.cache.clear();
    if (isFirst) session.since = at;
    session.intervalSeconds = isFirst ? null : seconds;
    session.sampledAt = at;
    // Also counts what the process did meanwhile: then the next sample is late.
    const delay = (cpu() - cpuBefore) / CPU_SHARE;
    return Math.min(Math.max(delay, MIN_INTERVAL_MS), MAX_INTERVAL_MS);
  }

  #schedule(session: Session, delay: number): void {
    if (session.isOver) return;
    session.timer = this.#options.timers.set(() => {
      this.#sample(session, false).then(
        (next) => this.#schedule(session, next),
        (error: unknown) => {
          if (!session.isOver) this.#options.onError(error);
          this.#schedule(session, MAX_INTERVAL_MS);
        },
      );
    }, delay);
  }

  async #stop(): Promise<void> {
    const stopping = this.#session;
    this.#session = undefined;
    const session = await stopping?.catch(() => undefined);
    if (session !== undefined) this.#end(session);
  }

  #end(session: Session): void {
    session.isOver = true;
    session.stopReading();
    this.#options.timers.clear(session.timer);
    session.ends.close();
    this.#options.index.release();
  }
}

/** @returns whether events may be left. */
function readEnds(session: Session): boolean {
  const { ends, connections, weight } = session;
  return ends.read((entry) => {
    session.read += 1;
    connections.ended(entry, weight);
  });
}

/** Adapts the share of ends that are read. Call it when none waits: waiting ones have the old weight. */
function weigh(session: Session, now: number): void {
  const elapsed = now - session.weighedAt;
  if (elapsed < RATE_MS) return;
  const perSecond = (session.read * session.weight * 1000) / elapsed;
  session.read = 0;
  session.weighedAt = now;
  // A power of two, so that it rarely changes.
  const weight =
    perSecond <= MAX_ENDS ? 1 : 2 ** Math.ceil(Math.log2(perSecond / MAX_SAMPLED_ENDS));
  if (weight === session.weight) return;
  session.ends.sample(weight);
  session.weight = weight;
  session.maxWeight = Math.max(session.maxWeight, weight);
}

function sampleOf(session: Session): TrafficSample {
  const { since, sampledAt, intervalSeconds, countsBytes, ends, connections, counters } = session;
  const notes: string[] = [];
  if (!countsBytes) {
    notes.push('no packets and bytes: net.netfilter.nf_conntrack_acct=0; 1 counts new connections');
  }
  if (ends.dropped > 0) {
    notes.push(
      `${ends.dropped} ends of connections did not fit into the buffer; values are too low`,
    );
  }
  if (session.maxWeight > 1) {
    notes.push(
      `values are estimates: more than ${MAX_ENDS} connections ended a second, and 1 of ${session.maxWeight} was read`,
    );
  }
  if (connections.untracked > 0) {
    notes.push(`${connections.untracked} connections count only when they end; too many exist`);
  }
  if (counters.uncounted > 0) {
    notes.push(`${counters.uncounted} connections are not counted; too many Services have traffic`);
  }
  return {
    since: new Date(since).toISOString(),
    sampledAt: new Date(sampledAt).toISOString(),
    intervalSeconds,
    countsBytes,
    notes,
  };
}
