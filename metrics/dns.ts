/**
 * Metrics of the DNS server. Metrics that CoreDNS also has use CoreDNS's names, labels and buckets
 * (plugins metrics, forward and proxy), so that its dashboards and alerts work. docs/operate/metrics.md
 * lists them.
 */
import { socketAddress } from '../api/addresses.ts';
import type { NoResponseError, Resolver } from '../dns/exchange.ts';
import type { CacheStats } from '../dns/forward-cache.ts';
import type { DnsQuery, Edns } from '../dns/query.ts';
import { RCODES } from '../dns/query.ts';
import type { ServedQuery } from '../dns/server.ts';
import { TYPE } from '../dns/types.ts';
import { apiServerMetrics } from './api-server.ts';
import { createRegistry, exponentialBuckets, type MetricDefiner, metricDefiner } from './define.ts';
import { processMetrics } from './portwide.ts';

/** The part of a served query that is counted. */
export type CountedQuery = Omit<ServedQuery, 'query'> & {
  readonly query:
    | (Pick<DnsQuery, 'type'> & { readonly edns: Pick<Edns, 'dnssecOk'> | undefined })
    | undefined;
};

export type DnsMetrics = ReturnType<typeof createDnsMetrics>;

/** Values collected at each scrape. */
interface DnsMetricSources {
  /** Number of open connections. */
  readonly tcpConnections: () => number;
  readonly resolvers: () => readonly { readonly resolver: Resolver; readonly isUp: boolean }[];
  /** Returns undefined if nothing is forwarded. */
  readonly cache: () => CacheStats | undefined;
}

/** CoreDNS's buckets: 0.25 ms, doubled up to 8 s. */
const TIME_BUCKETS = exponentialBuckets(0.00025, 2, 16);
/** CoreDNS's buckets in bytes, including the irregular 8291. */
const SIZE_BUCKETS = [0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16e3, 32e3, 48e3, 64e3];
/** Types in `TYPE` that CoreDNS counts as `other`, as it counts all types that are not in `TYPE`. */
const OTHER_TYPES = ['HINFO', 'OPT'];
const TYPES = namesByNumber(TYPE);
const CODES = namesByNumber(RCODES);
/**
 * CoreDNS's zone label for queries that no plugin received. It has no final dot, so it cannot be a
 * zone.
 */
const DROPPED = 'dropped';
/** The CoreDNS plugin with the function of the part that answered, for label `plugin`. */
const PLUGINS = { zone: 'kubernetes', forward: 'forward' };

/**
 * All metrics of the DNS server, in their own registry.
 * @param port listening port, for label `server` (`dns://:53`) as in CoreDNS.
 * @param version of the package.
 */
export function createDnsMetrics(port: number, version: string) {
  const registry = createRegistry();
  const define = metricDefiner(registry);
  const { counter, histogram } = define;
  const requests = counter(
    'coredns_dns_requests_total',
    'Total number of DNS requests per zone, protocol, family and type.',
    ['server', 'zone', 'view', 'proto', 'family', 'type'],
  );
  const requestSeconds = histogram(
    'coredns_dns_request_duration_seconds',
    'Time in seconds each request took, per zone and type.',
    TIME_BUCKETS,
    ['server', 'zone', 'view', 'type'],
  );
  const sizeLabels = ['server', 'zone', 'view', 'proto'] as const;
  const requestBytes = histogram(
    'coredns_dns_request_size_bytes',
    'Size of requests in bytes, per zone and protocol.',
    SIZE_BUCKETS,
    sizeLabels,
  );
  const responseBytes = histogram(
    'coredns_dns_response_size_bytes',
    'Size of responses in bytes, per zone and protocol.',
    SIZE_BUCKETS,
    sizeLabels,
  );
  const dnssecRequests = counter(
    'coredns_dns_do_requests_total',
    'Total number of DNS requests with the DO bit set, per zone. The zone is not signed.',
    ['server', 'zone', 'view'],
  );
  const responses = counter(
    'coredns_dns_responses_total',
    'Total number of DNS responses per zone, response code and plugin.',
    ['server', 'zone', 'view', 'rcode', 'plugin'],
  );
  const upstreamSeconds = histogram(
    'coredns_proxy_request_duration_seconds',
    'Time in seconds until an upstream resolver responded, per resolver and response code.',
    TIME_BUCKETS,
    ['proxy_name', 'to', 'rcode'],
  );
  const rejected = counter(
    'coredns_forward_max_concurrent_rejects_total',
    'Total number of queries refused because too many were being forwarded.',
  );
  const failures = counter(
    'portwide_dns_forward_failures_total',
    'Total number of forwarded queries that a resolver did not answer, by reason.',
    ['to', 'reason'],
  );
  const programmingSeconds = histogram(
    'coredns_kubernetes_dns_programming_duration_seconds',
    'Time in seconds from a change of endpoints until the DNS records follow it.',
    exponentialBuckets(0.001, 2, 20),
    ['service_kind'],
  );
  const probeFailures = counter(
    'coredns_proxy_healthcheck_failures_total',
    'Total number of failed health check probes, per resolver.',
    ['proxy_name', 'to'],
  );
  const broken = counter(
    'coredns_forward_healthcheck_broken_total',
    'Total number of times that all resolvers were down and were queried regardless.',
  );
  const common = { server: `dns://:${port}`, view: '' };

  return {
    registry,
    api: apiServerMetrics(define),
    ...processMetrics(define, version),
    /** Queries on which the server had an internal error. */
    internalErrors: counter(
      'coredns_panics_total',
      'Total number of queries on which the server had an internal error.',
    ),
    /**
     * @param seconds from the change of a headless Service's endpoints until its records follow.
     */
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
      failed: (to: Resolver, code: NoResponseError['code']) =>
        failures.inc({ to: hostPort(to), reason: code.toLowerCase() }),
      rejected: () => rejected.inc(),
      probeFailed: (to: Resolver) => probeFailures.inc(proxy(to)),
      allDown: () => broken.inc(),
    },
    /**
     * Registers the metrics that are collected from `sources`. Call once, before the first scrape.
     */
    collectFrom: (sources: DnsMetricSources) => {
      serverMetrics(define, sources);
      cacheMetrics(define, common, sources.cache);
    },
  };
}

function serverMetrics(
  { collected, collectedValue }: MetricDefiner,
  { resolvers, tcpConnections }: DnsMetricSources,
): void {
  collected(
    'gauge',
    'portwide_dns_resolver_up',
    '1 while queries are forwarded to the resolver, 0 while it is down.',
    ['to'],
    () =>
      resolvers().map(({ resolver, isUp }) => ({ to: hostPort(resolver), count: isUp ? 1 : 0 })),
  );
  collectedValue(
    'gauge',
    'portwide_dns_tcp_connections',
    'Number of open TCP connections from clients.',
    tcpConnections,
  );
}

/** Metrics of CoreDNS's *cache* plugin. */
function cacheMetrics(
  { collected }: MetricDefiner,
  common: Readonly<Record<'server' | 'view', string>>,
  cacheStats: DnsMetricSources['cache'],
): void {
  const labels = { ...common, zones: '.' };
  const byType = (
    type: 'gauge' | 'counter',
    stat: 'entries' | 'hits' | 'evictions',
    name: string,
    help: string,
  ) =>
    collected(type, name, help, ['server', 'type', 'zones', 'view'], () => {
      const stats = cacheStats();
      if (stats === undefined) return [];
      return (['success', 'denial'] as const).map((each) => ({
        ...labels,
        type: each,
        count: stats[stat][each],
      }));
    });
  const total = (name: string, help: string, value: (stats: CacheStats) => number) =>
    collected('counter', name, help, ['server', 'zones', 'view'], () => {
      const stats = cacheStats();
      return stats === undefined ? [] : [{ ...labels, count: value(stats) }];
    });
  byType(
    'gauge',
    'entries',
    'coredns_cache_entries',
    'Number of cached responses of upstream resolvers.',
  );
  byType(
    'counter',
    'hits',
    'coredns_cache_hits_total',
    'Total number of queries answered from the cache.',
  );
  byType(
    'counter',
    'evictions',
    'coredns_cache_evictions_total',
    'Total number of cached responses evicted to make room.',
  );
  total(
    'coredns_cache_requests_total',
    'Total number of cacheable queries.',
    ({ hits, misses }) => hits.success + hits.denial + misses,
  );
  total(
    'coredns_cache_misses_total',
    'Total number of cacheable queries that the cache had no valid response for.',
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
