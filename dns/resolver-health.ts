/**
 * Tracks which resolvers are up. A resolver that did not answer is probed until it does, as in
 * CoreDNS's *forward* plugin.
 */
import { encode } from 'dns-packet';
import { exchange, NoResponseError, type Resolver } from './exchange.ts';
import { HEADER_LENGTH } from './query.ts';
import { formatResolver } from './resolver-address.ts';
import { FLAG } from './response.ts';

/** Receives the result of each probe of a resolver that did not answer a query. */
export interface ProbeObserver {
  probeFailed(resolver: Resolver): void;
  probeAnswered(resolver: Resolver): void;
}

export interface HealthOptions {
  /**
   * Sends a cheap query.
   * @throws NoResponseError (as a rejection)
   */
  readonly probe?: (resolver: Resolver) => Promise<unknown>;
  /** Milliseconds between a failed probe and the next one. */
  readonly period?: number;
  readonly observer: ProbeObserver;
}

/** CoreDNS's values, in milliseconds: the interval between probes, and the timeout of a probe. */
const PROBE_PERIOD = 500;
const PROBE_TIMEOUT = 1000;
/** CoreDNS's max_fails: a resolver is down after more consecutive failed probes than this. */
export const MAX_FAILS = 2;

/**
 * `. IN NS`, CoreDNS's probe: resolvers usually answer it from their cache. Any response counts as
 * success.
 */
const PROBE = encode({
  type: 'query',
  flags: FLAG.RD,
  questions: [{ name: '.', type: 'NS' }],
});

function askForRoot(resolver: Resolver): Promise<Buffer> {
  return exchange(resolver, PROBE, PROBE.subarray(HEADER_LENGTH), 'udp', PROBE_TIMEOUT);
}

interface ProbeState {
  /** Consecutive failed probes. */
  fails: number;
  timer: NodeJS.Timeout | undefined;
}

/** Counts failed probes by resolver. Resolvers are probed only after a failed query. */
export class ResolverHealth {
  readonly #options: Required<HealthOptions>;
  /** Resolvers that are being probed, by address and port. */
  readonly #probes = new Map<string, ProbeState>();

  constructor(options: HealthOptions) {
    this.#options = { probe: askForRoot, period: PROBE_PERIOD, ...options };
  }

  isDown(resolver: Resolver): boolean {
    return (this.#probes.get(formatResolver(resolver))?.fails ?? 0) > MAX_FAILS;
  }

  /**
   * Starts probing a resolver that did not answer a query, to find out whether the resolver is down
   * or only that query failed.
   */
  startProbing(resolver: Resolver): void {
    const key = formatResolver(resolver);
    if (this.#probes.has(key)) return;
    const state: ProbeState = { fails: 0, timer: undefined };
    this.#probes.set(key, state);
    void this.#probe(resolver, key, state);
  }

  /** Stops probing all resolvers except the given ones. */
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
      if (!(error instanceof NoResponseError)) throw error;
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
