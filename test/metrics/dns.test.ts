import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { type CountedQuery, createDnsMetrics } from '../../metrics/dns.ts';
import { promtoolProblems } from './promtool.ts';
import { Scrape } from './scrape.ts';

const TIME_BUCKETS = Array.from({ length: 16 }, (_, power) => 0.00025 * 2 ** power);
const SIZE_BUCKETS = [0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16e3, 32e3, 48e3, 64e3];
const CACHE_LABELS = ['server', 'type', 'view', 'zones'];
const SIZE_LABELS = ['proto', 'server', 'view', 'zone'];

/** CoreDNS's metrics as in its README files, and Portwide's own. */
const ROWS: readonly (readonly [string, string, readonly string[], (readonly number[])?])[] = [
  ['coredns_dns_requests_total', 'counter', ['family', 'proto', 'server', 'type', 'view', 'zone']],
  [
    'coredns_dns_request_duration_seconds',
    'histogram',
    ['server', 'type', 'view', 'zone'],
    TIME_BUCKETS,
  ],
  ['coredns_dns_request_size_bytes', 'histogram', SIZE_LABELS, SIZE_BUCKETS],
  ['coredns_dns_response_size_bytes', 'histogram', SIZE_LABELS, SIZE_BUCKETS],
  ['coredns_dns_do_requests_total', 'counter', ['server', 'view', 'zone']],
  ['coredns_dns_responses_total', 'counter', ['plugin', 'rcode', 'server', 'view', 'zone']],
  ['coredns_panics_total', 'counter', []],
  [
    'coredns_proxy_request_duration_seconds',
    'histogram',
    ['proxy_name', 'rcode', 'to'],
    TIME_BUCKETS,
  ],
  ['coredns_forward_max_concurrent_rejects_total', 'counter', []],
  [
    'coredns_kubernetes_dns_programming_duration_seconds',
    'histogram',
    ['service_kind'],
    Array.from({ length: 20 }, (_, power) => 0.001 * 2 ** power),
  ],
  ['coredns_proxy_healthcheck_failures_total', 'counter', ['proxy_name', 'to']],
  ['coredns_forward_healthcheck_broken_total', 'counter', []],
  ['coredns_cache_entries', 'gauge', CACHE_LABELS],
  ['coredns_cache_hits_total', 'counter', CACHE_LABELS],
  ['coredns_cache_evictions_total', 'counter', CACHE_LABELS],
  ['coredns_cache_requests_total', 'counter', ['server', 'view', 'zones']],
  ['coredns_cache_misses_total', 'counter', ['server', 'view', 'zones']],
  ['portwide_dns_resolver_up', 'gauge', ['to']],
  ['portwide_dns_forward_failures_total', 'counter', ['reason', 'to']],
  ['portwide_dns_tcp_connections', 'gauge', []],
  ['portwide_build_info', 'gauge', ['version']],
  ['portwide_api_watch_state', 'gauge', ['kind']],
];

const QUERY: CountedQuery = {
  transport: 'udp',
  family: 'IPv4',
  zone: 'cluster.local',
  query: { type: 28, edns: { dnssecOk: true } },
  rcode: 3,
  by: 'zone',
  requestLength: 50,
  responseLength: 150,
  seconds: 0.001,
};
const COMMON = { server: 'dns://:53', view: '' };

function experienced() {
  const resolver = { address: '192.0.2.1', port: 5353 };
  const metrics = createDnsMetrics(53, '1.2.3');
  metrics.collectFrom({
    tcpConnections: () => 4,
    resolvers: () => [{ resolver, isUp: false }],
    cache: () => ({
      hits: { success: 5, denial: 6 },
      misses: 7,
      entries: { success: 8, denial: 9 },
      evictions: { success: 10, denial: 11 },
    }),
  });
  metrics.served(QUERY);
  metrics.forwarding.answered({ address: '192.0.2.1', port: 53 }, 0, 0.002);
  metrics.forwarding.failed({ address: '2001:db8::1', port: 53 }, 'TIMEOUT');
  metrics.forwarding.probeFailed(resolver);
  metrics.programmed(1.5);
  metrics.api.watchOpen('Service', true);
  return metrics;
}

async function scrapeOf(metrics: ReturnType<typeof createDnsMetrics>): Promise<Scrape> {
  return new Scrape(await metrics.registry.metrics());
}

describe('dns: metrics of the DNS server', () => {
  for (const [name, type, labels, buckets = []] of ROWS) {
    it(`exports ${name} with its type, labels and buckets`, async () => {
      const metric = (await scrapeOf(experienced())).metrics.get(name);
      assert.ok(metric !== undefined, 'missing');
      assert.equal(metric.type, type);
      const seen = metric.samples.flatMap((sample) => Object.keys(sample.labels));
      assert.deepEqual([...new Set(seen)].filter((label) => label !== 'le').sort(), labels);
      const les = metric.samples.flatMap(({ labels: { le } }) => le ?? []);
      assert.deepEqual([...new Set(les)].filter((le) => le !== '+Inf').map(Number), buckets);
    });
  }

  it('exports exactly the metrics of docs/operate/metrics.md with these prefixes', async () => {
    const { metrics } = await scrapeOf(experienced());
    const names = [...metrics.keys()].filter(
      (name) => name.startsWith('coredns_') || name.startsWith('portwide_dns_'),
    );
    const known = ROWS.map(([name]) => name);
    assert.deepEqual(
      names.filter((name) => !known.includes(name)),
      [],
    );
    const page = readFileSync(new URL('../../docs/operate/metrics.md', import.meta.url), 'utf8');
    assert.deepEqual(
      names.filter((name) => !page.includes(`\`${name}\``)),
      [],
    );
  });

  it('exports the values that CoreDNS would have', async () => {
    const metrics = experienced();
    const other = { ...QUERY, transport: 'tcp', family: 'IPv6', zone: '', by: 'forward' } as const;
    metrics.served({ ...other, query: { type: 64, edns: undefined }, rcode: 11 });
    metrics.served({ ...QUERY, zone: undefined, query: undefined, rcode: 1, by: undefined });
    const scrape = await scrapeOf(metrics);
    const requests = (labels: Record<string, string>) =>
      scrape.value('coredns_dns_requests_total', { ...COMMON, ...labels });
    assert.equal(requests({ zone: 'cluster.local.', proto: 'udp', family: '1', type: 'AAAA' }), 1);
    assert.equal(requests({ zone: '.', proto: 'tcp', family: '2', type: 'other' }), 1);
    assert.equal(requests({ zone: 'dropped', proto: 'udp', family: '1', type: 'other' }), 1);
    const responses = (labels: Record<string, string>) =>
      scrape.value('coredns_dns_responses_total', { ...COMMON, ...labels });
    assert.equal(responses({ zone: 'cluster.local.', rcode: 'NXDOMAIN', plugin: 'kubernetes' }), 1);
    assert.equal(responses({ zone: '.', rcode: '11', plugin: 'forward' }), 1);
    assert.equal(responses({ zone: 'dropped', rcode: 'FORMERR', plugin: '' }), 1);
    const wished = { ...COMMON, zone: 'cluster.local.' };
    assert.equal(scrape.value('coredns_dns_do_requests_total', wished), 1);
    const sizes = { ...wished, proto: 'udp' };
    assert.equal(scrape.value('coredns_dns_request_size_bytes_sum', sizes), 50);
    assert.equal(scrape.value('coredns_dns_response_size_bytes_sum', sizes), 150);
    const seconds = { ...wished, type: 'AAAA' };
    assert.equal(scrape.value('coredns_dns_request_duration_seconds_sum', seconds), 0.001);
    const to = { proxy_name: 'forward', to: '192.0.2.1:53', rcode: 'NOERROR' };
    assert.equal(scrape.value('coredns_proxy_request_duration_seconds_count', to), 1);
    const failed = { to: '[2001:db8::1]:53', reason: 'timeout' };
    assert.equal(scrape.value('portwide_dns_forward_failures_total', failed), 1);
    const kind = { service_kind: 'headless_with_selector' };
    const programmed = 'coredns_kubernetes_dns_programming_duration_seconds_sum';
    assert.equal(scrape.value(programmed, kind), 1.5);
    const probed = { proxy_name: 'forward', to: '192.0.2.1:5353' };
    assert.equal(scrape.value('coredns_proxy_healthcheck_failures_total', probed), 1);
    assert.equal(scrape.value('portwide_dns_resolver_up', { to: '192.0.2.1:5353' }), 0);
    const cached = { ...COMMON, zones: '.' };
    assert.equal(scrape.value('coredns_cache_hits_total', { ...cached, type: 'denial' }), 6);
    assert.equal(scrape.value('coredns_cache_requests_total', cached), 18);
    assert.equal(scrape.value('portwide_dns_tcp_connections'), 4);
  });

  it('passes promtool check metrics', async () => {
    assert.deepEqual(await promtoolProblems(await experienced().registry.metrics()), []);
  });
});
