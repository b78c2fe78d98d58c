/** Which resolvers answer: those that do not are probed until they do, as by CoreDNS's plugin *forward*. */
import { encode } from 'dns-packet';
import { exchange, NoAnswer, type Resolver } from './exchange.ts';
import { HEADER_LENGTH } from './query.ts';
import { formatResolver } from './resolver-address.ts';
import { FLAG } from './response.ts';

/** Hears of each probe of a resolver that did not answer a query. */
export interface ProbeObserver {
  probeFailed(resolver: Resolver): void;
  probeAnswered(resolver: Resolver): void;
}

export interface HealthOptions {
  /** Asks something cheap. @throws NoAnswer (a rejection) */
  readonly probe?: (resolver: Resolver) => Promise<unknown>;
  /** Milliseconds from a failed probe to the next. */
  readonly period?: number;
  readonly observer: ProbeObserver;
}

/** CoreDNS's: milliseconds between probes, and for one to be answered. */
const PROBE_PERIOD = 500;
const PROBE_TIMEOUT = 1000;
/** CoreDNS's max_fails: with more failed probes in a row a resolver is down. */
export const MAX_FAILS = 2;

/** `. IN NS`, as CoreDNS asks: every resolver has it in its cache. Any answer will do. */
const PROBE = encode({
  type: 'query',
  flags: FLAG.RD,
  questions: [{ name: '.', type: 'NS' }],
});

function askForRoot(resolver: Resolver): Promise<Buffer> {
  return exchange(resolver, PROBE, PROBE.subarray(HEADER_LENGTH), 'udp', PROBE_TIMEOUT);
}

interface ProbeState {
  /** Failed probes in a row. */
  fails: number;
  timer: NodeJS.Timeout | undefined;
}

/** Counts failed probes by resolver. One that nobody finds fault with is not probed. */
export class ResolverHealth {
  readonly #options: Required<HealthOptions>;
  /** Of resolvers that are being probed. */
  readonly #probes = new Map<string, ProbeState>();

  constructor(options: HealthOptions) {
    this.#options = { probe: askForRoot, period: PROBE_PERIOD, ...options };
  }

  isDown(resolver: Resolver): boolean {
    return (this.#probes.get(formatResolver(resolver))?.fails ?? 0) > MAX_FAILS;
  }

  /** It did not answer a query: is it the resolver, or the query? */
  startProbing(resolver: Resolver): void {
    const key = formatResolver(resolver);
    if (this.#probes.has(key)) return;
    const state: ProbeState = { fails: 0, timer: undefined };
    this.#probes.set(key, state);
    void this.#probe(resolver, key, state);
  }

  /** Forgets all but these. */
  retain(resolvers: readonly Resolver[]): void {
    const keys = new Set(resolvers.map(formatResolver));
    for (const [key, { timer }] of this.#probes) {
      if (keys.has(key)) continue;
      clearTimeout(timer);
      this.#probes.delete(key);
    }
  }

  async #probe(resolver: Resolver, key: string, state: ProbeState): Promise<void> {
    const { probe, period, observer } = this.#options;
    const isWanted = () => this.#probes.get(key) === state;
    try {
      await probe(resolver);
    } catch (error) {
      if (!(error instanceof NoAnswer)) throw error;
      if (!isWanted()) return;
      state.fails += 1;
      observer.probeFailed(resolver);
      state.timer = setTimeout(() => void this.#probe(resolver, key, state), period).unref();
      return;
    }
    if (!isWanted()) return;
    this.#probes.delete(key);
    observer.probeAnswered(resolver);
  }
}
