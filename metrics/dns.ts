/**
 * Metrics of the DNS server. Where CoreDNS has one for the same, name, labels and buckets are CoreDNS's
 * (plugins metrics, forward and proxy), as those of the agent are kube-proxy's: what looks at the
 * one looks at the other. docs/metrics.md has a table of them.
 */
import { socketAddress } from '../api/addresses.ts';
import type { NoAnswer, Resolver } from '../dns/exchange.ts';
import type { CacheStats } from '../dns/forward-cache.ts';
import type { DnsQuery, Edns } from '../dns/query.ts';
import { RCODES } from '../dns/query.ts';
import type { ServedQuery } from '../dns/server.ts';
import { TYPE } from '../dns/types.ts';
import { apiServerMetrics } from './api-server.ts';
import { createRegistry, exponential, type MetricDefiner, metricDefiner } from './define.ts';
import { processMetrics } from './portwide.ts';

/** As much of an exchange as is counted. */
export type CountedQuery = Omit<ServedQuery, 'query'> & {
  readonly query:
    | (Pick<DnsQuery, 'type'> & { readonly edns: Pick<Edns, 'dnssecOk'> | undefined })
    | undefined;
};

export type DnsMetrics = ReturnType<typeof createDnsMetrics>;

/** Kept elsewhere, and asked for at each scrape. */
interface DnsMetricSources {
  /** How many are open. */
  readonly tcpConnections: () => number;
  readonly resolvers: () => readonly { readonly resolver: Resolver; readonly isUp: boolean }[];
  /** undefined: nothing is forwarded. */
  readonly cache: () => CacheStats | undefined;
}

/** CoreDNS's: 0.25 ms, doubled up to 8 s. */
const TIME_BUCKETS = exponential(0.00025, 2, 16);
/** CoreDNS's, in bytes; the odd one included. */
const SIZE_BUCKETS = [0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16e3, 32e3, 48e3, 64e3];
/** Types that CoreDNS does not tell apart, with all that have no name here. */
const OTHER_TYPES = ['HINFO', 'OPT'];
const TYPES = namesByNumber(TYPE);
const CODES = namesByNumber(RCODES);
/** CoreDNS's zone for what reached no plugin; without the final dot it is no zone. */
const DROPPED = 'dropped';
/** CoreDNS's names of the plugins that do the same. */
const PLUGINS = { zone: 'kubernetes', forward: 'forward' };

/**
 * All metrics of the DNS server, in a registry of their own.
 * @param port that it listens on, which is a label in CoreDNS.
 * @param version of the package.
 */
export function createDnsMetrics(port: number, version: string) {
  const registry = createRegistry();
  const define = metricDefiner(registry);
  const { counter, histogram } = define;
  const requests = counter(
    'coredns_dns_requests_total',
    'Queries so far, by zone, protocol, family and type',
    ['server', 'zone', 'view', 'proto', 'family', 'type'],
  );
  const requestSeconds = histogram(
    'coredns_dns_request_duration_seconds',
    'Seconds until a query was answered',
    TIME_BUCKETS,
    ['server', 'zone', 'view', 'type'],
  );
  const sizeLabels = ['server', 'zone', 'view', 'proto'] as const;
  const requestBytes = histogram(
    'coredns_dns_request_size_bytes',
    'Bytes of queries',
    SIZE_BUCKETS,
    sizeLabels,
  );
  const responseBytes = histogram(
    'coredns_dns_response_size_bytes',
    'Bytes of answers',
    SIZE_BUCKETS,
    sizeLabels,
  );
  const dnssecRequests = counter(
    'coredns_dns_do_requests_total',
    'Queries so far that asked for signatures, of which there are none',
    ['server', 'zone', 'view'],
  );
  const responses = counter('coredns_dns_responses_total', 'Answers so far, by their code', [
    'server',
    'zone',
    'view',
    'rcode',
    'plugin',
  ]);
  const upstreamSeconds = histogram(
    'coredns_proxy_request_duration_seconds',
    'Seconds until a resolver answered what was forwarded to it',
    TIME_BUCKETS,
    ['proxy_name', 'to', 'rcode'],
  );
  const rejected = counter(
    'coredns_forward_max_concurrent_rejects_total',
    'Queries refused because too many were being forwarded',
  );
  const failures = counter(
    'portwide_dns_forward_failures_total',
    'How often a resolver did not answer what was forwarded to it',
    ['to', 'reason'],
  );
  const programmingSeconds = histogram(
    'coredns_kubernetes_dns_programming_duration_seconds',
    'Seconds from a change of endpoints until the records follow it',
    exponential(0.001, 2, 20),
    ['service_kind'],
  );
  const probeFailures = counter(
    'coredns_proxy_healthcheck_failures_total',
    'How often a resolver did not answer when it was probed',
    ['proxy_name', 'to'],
  );
  const broken = counter(
    'coredns_forward_healthcheck_broken_total',
    'How often all resolvers were down, and were asked all the same',
  );
  const common = { server: `dns://:${port}`, view: '' };

  return {
    registry,
    api: apiServerMetrics(define),
    ...processMetrics(define, version),
    /** Queries that the server itself failed on. */
    internalErrors: counter(
      'coredns_panics_total',
      'Queries so far that the server itself failed on',
    ),
    /** @param seconds from the change of a headless Service's endpoints until its records say so. */
    programmed: (seconds: number) =>
      programmingSeconds.observe({ service_kind: 'headless_with_selector' }, seconds),
    served(exchange: CountedQuery) {
      const { transport: proto, family, zone: name, query, rcode, by, seconds } = exchange;
      const zone = name === undefined ? DROPPED : `${name}.`;
      const known = query && TYPES.get(query.type);
      const type = known === undefined || OTHER_TYPES.includes(known) ? 'other' : known;
      const labels = { ...common, zone };
      requests.inc({ ...labels, proto, family: family === 'IPv4' ? '1' : '2', type });
      requestSeconds.observe({ ...labels, type }, seconds);
      requestBytes.observe({ ...labels, proto }, exchange.requestLength);
      responseBytes.observe({ ...labels, proto }, exchange.responseLength);
      if (query?.edns?.dnssecOk) dnssecRequests.inc(labels);
      const plugin = by === undefined ? '' : PLUGINS[by];
      responses.inc({ ...labels, rcode: rcodeName(rcode), plugin });
    },
    forwarding: {
      answered: (to: Resolver, rcode: number, seconds: number) =>
        upstreamSeconds.observe({ ...proxy(to), rcode: rcodeName(rcode) }, seconds),
      failed: (to: Resolver, code: NoAnswer['code']) =>
        failures.inc({ to: hostPort(to), reason: code.toLowerCase() }),
      rejected: () => rejected.inc(),
      probeFailed: (to: Resolver) => probeFailures.inc(proxy(to)),
      allDown: () => broken.inc(),
    },
    /** Has these numbers asked for from now on. Call it once, before anything is scraped. */
    collectFrom: (sources: DnsMetricSources) => {
      serverMetrics(define, sources);
      cacheMetrics(define, common, sources.cache);
    },
  };
}

function serverMetrics(
  { collected: asked, collectedValue: askedOne }: MetricDefiner,
  { resolvers, tcpConnections }: DnsMetricSources,
): void {
  asked('gauge', 'portwide_dns_resolver_up', '1 while queries are forwarded to it', ['to'], () =>
    resolvers().map(({ resolver, isUp }) => ({ to: hostPort(resolver), count: isUp ? 1 : 0 })),
  );
  askedOne(
    'gauge',
    'portwide_dns_tcp_connections',
    'Connections of clients that are open',
    tcpConnections,
  );
}

/** CoreDNS's of its plugin *cache*. */
function cacheMetrics(
  { collected: asked }: MetricDefiner,
  common: Readonly<Record<'server' | 'view', string>>,
  numbers: DnsMetricSources['cache'],
): void {
  const labels = { ...common, zones: '.' };
  const byType = (
    type: 'gauge' | 'counter',
    name: 'entries' | 'hits' | 'evictions',
    full: string,
    help: string,
  ) =>
    asked(type, full, help, ['server', 'type', 'zones', 'view'], () => {
      const now = numbers();
      if (now === undefined) return [];
      return (['success', 'denial'] as const).map((each) => ({
        ...labels,
        type: each,
        count: now[name][each],
      }));
    });
  const total = (full: string, help: string, value: (now: CacheStats) => number) =>
    asked('counter', full, help, ['server', 'zones', 'view'], () => {
      const now = numbers();
      return now === undefined ? [] : [{ ...labels, count: value(now) }];
    });
  byType('gauge', 'entries', 'coredns_cache_entries', 'Answers of resolvers that are kept');
  byType(
    'counter',
    'hits',
    'coredns_cache_hits_total',
    'Queries so far that were answered by these',
  );
  byType(
    'counter',
    'evictions',
    'coredns_cache_evictions_total',
    'Answers so far that made room for others',
  );
  total(
    'coredns_cache_requests_total',
    'Queries so far whose answers could have been kept',
    ({ hits, misses }) => hits.success + hits.denial + misses,
  );
  total(
    'coredns_cache_misses_total',
    'Queries so far whose answers were not, or no longer',
    ({ misses }) => misses,
  );
}

function proxy(to: Resolver): { proxy_name: string; to: string } {
  return { proxy_name: 'forward', to: hostPort(to) };
}

function rcodeName(rcode: number): string {
  return CODES.get(rcode) ?? String(rcode);
}

function hostPort({ address, port }: Resolver): string {
  return socketAddress(address, port);
}

function namesByNumber(numbers: Readonly<Record<string, number>>): ReadonlyMap<number, string> {
  return new Map(Object.entries(numbers).map(([name, number]) => [number, name]));
}
