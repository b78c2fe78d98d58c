import assert from 'node:assert/strict';
import { IptablesError } from '../../iptables/commands.ts';
import { metricDefiner } from '../../metrics/define.ts';
import { policyMetrics } from '../../metrics/policy.ts';
import { METRIC_NAMES } from '../deploy/metric-names.ts';
import { endpoint, service, slice } from '../fixtures.ts';
import { fakeAgent } from './agent.ts';
import type { Scrape, Scraped } from './scrape.ts';

type Row = readonly [
  name: string,
  type: string,
  labels: readonly string[],
  buckets?: readonly number[],
];

const SYNC_BUCKETS = [
  0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192,
  16.384,
];
const upTo = (first: number, last: number, step: number) =>
  Array.from({ length: (last - first) / step + 1 }, (_, index) => first + index * step);
const NETWORK_BUCKETS = [0.25, 0.5, ...upTo(1, 59, 1), ...upTo(60, 115, 5), ...upTo(120, 300, 30)];
const REQUEST_BUCKETS = [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60];
const FAMILY = ['ip_family'];
const COMPILE_BUCKETS = SYNC_BUCKETS.map((seconds) => seconds / 10);

/** kube-proxy's metrics, on which dashboards and alerts depend. */
const KUBE_PROXY: readonly Row[] = [
  ['kubeproxy_sync_proxy_rules_duration_seconds', 'histogram', FAMILY, SYNC_BUCKETS],
  ['kubeproxy_sync_full_proxy_rules_duration_seconds', 'histogram', FAMILY, SYNC_BUCKETS],
  ['kubeproxy_sync_partial_proxy_rules_duration_seconds', 'histogram', FAMILY, SYNC_BUCKETS],
  ['kubeproxy_sync_proxy_rules_last_timestamp_seconds', 'gauge', FAMILY],
  ['kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds', 'gauge', FAMILY],
  ['kubeproxy_network_programming_duration_seconds', 'histogram', FAMILY, NETWORK_BUCKETS],
  ['kubeproxy_sync_proxy_rules_endpoint_changes_pending', 'gauge', []],
  ['kubeproxy_sync_proxy_rules_endpoint_changes_total', 'counter', []],
  ['kubeproxy_sync_proxy_rules_service_changes_pending', 'gauge', []],
  ['kubeproxy_sync_proxy_rules_service_changes_total', 'counter', []],
  ['kubeproxy_sync_proxy_rules_iptables_restore_failures_total', 'counter', FAMILY],
  ['kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total', 'counter', FAMILY],
  ['kubeproxy_sync_proxy_rules_nftables_sync_failures_total', 'counter', FAMILY],
  ['kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total', 'counter', FAMILY],
  ['kubeproxy_sync_proxy_rules_iptables_total', 'gauge', ['ip_family', 'table']],
  ['kubeproxy_sync_proxy_rules_iptables_last', 'gauge', ['ip_family', 'table']],
  ['kubeproxy_sync_proxy_rules_no_local_endpoints_total', 'gauge', ['ip_family', 'traffic_policy']],
  ['kubeproxy_proxy_healthz_total', 'counter', ['code']],
  ['kubeproxy_proxy_livez_total', 'counter', ['code']],
  ['kubeproxy_conntrack_reconciler_sync_duration_seconds', 'histogram', FAMILY, SYNC_BUCKETS],
  ['kubeproxy_conntrack_reconciler_deleted_entries_total', 'counter', FAMILY],
  [
    'kubernetes_build_info',
    'gauge',
    [
      'build_date',
      'compiler',
      'git_commit',
      'git_tree_state',
      'git_version',
      'go_version',
      'major',
      'minor',
      'platform',
    ],
  ],
  ['kubernetes_feature_enabled', 'gauge', ['name', 'stage']],
  ['kubeproxy_nftables_localhost_nodeport_listeners', 'gauge', FAMILY],
  ['kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total', 'counter', FAMILY],
  [
    'kubeproxy_nftables_localhost_nodeport_rejected_packets_total',
    'counter',
    ['ip_family', 'protocol'],
  ],
  ['rest_client_requests_total', 'counter', ['code', 'host', 'method']],
  ['rest_client_request_duration_seconds', 'histogram', ['host', 'verb'], REQUEST_BUCKETS],
  ['process_cpu_seconds_total', 'counter', []],
  ['process_start_time_seconds', 'gauge', []],
  ['process_resident_memory_bytes', 'gauge', []],
  ['process_virtual_memory_bytes', 'gauge', []],
  ['process_open_fds', 'gauge', []],
  ['process_max_fds', 'gauge', []],
];

const PORTWIDE: readonly Row[] = [
  ['portwide_build_info', 'gauge', ['version']],
  ['portwide_initial_sync_complete', 'gauge', []],
  ['portwide_node_missing', 'gauge', []],
  ['portwide_proxy_mode_fallback', 'gauge', []],
  ['portwide_faulty_manifests', 'gauge', []],
  ['portwide_unbound_health_check_node_ports', 'gauge', []],
  ['portwide_services_on_own_ports', 'gauge', []],
  ['portwide_all_ports_services', 'gauge', ['kind']],
  ['portwide_refused_services', 'gauge', ['reason']],
  ['portwide_owned_slices', 'gauge', ['ip_family', 'state']],
  ['portwide_endpoints_without_owned_ports', 'gauge', ['reason']],
  ['portwide_routes', 'gauge', ['ip_family', 'kind']],
  ['portwide_nftables_elements', 'gauge', ['ip_family', 'map']],
  ['portwide_marks_in_use', 'gauge', FAMILY],
  ['portwide_localhost_node_port_connections_total', 'counter', ['ip_family', 'result']],
  ['portwide_marks_exhausted', 'gauge', FAMILY],
  ['portwide_draining_vips', 'gauge', FAMILY],
  ['portwide_config_restart_pending', 'gauge', []],
  ['portwide_config_changes_total', 'counter', ['result']],
  ['portwide_takeover_remaining', 'gauge', ['reason', 'what']],
  ['portwide_takeover_connections', 'gauge', []],
  ['portwide_backend_apply_duration_seconds', 'histogram', FAMILY, SYNC_BUCKETS],
  [
    'portwide_event_loop_stall_seconds',
    'histogram',
    [],
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5],
  ],
  ['portwide_api_watch_state', 'gauge', ['kind']],
  ['portwide_api_last_event_timestamp_seconds', 'gauge', ['kind']],
  ['portwide_api_stalled_watches_total', 'counter', ['kind']],
  ['portwide_events_dropped_total', 'counter', ['reason']],
];

/** Metrics of agents that enforce network policy. */
const POLICY: readonly Row[] = [
  ['portwide_policies', 'gauge', ['kind', 'state']],
  ['portwide_policy_unreadable_objects', 'gauge', ['kind']],
  ['portwide_policy_sets', 'gauge', ['direction']],
  ['portwide_policy_elements', 'gauge', ['ip_family', 'set']],
  ['portwide_policy_denied_packets_total', 'counter', ['direction', 'ip_family', 'tier']],
  ['portwide_policy_dns_uninspected', 'gauge', []],
  ['portwide_policy_fqdn_names', 'gauge', []],
  ['portwide_policy_fqdn_addresses', 'gauge', []],
  ['portwide_policy_fqdn_evictions_total', 'counter', []],
  ['portwide_policy_dns_messages_total', 'counter', ['outcome']],
  ['portwide_policy_dns_queue_drops_total', 'counter', []],
  ['portwide_policy_dns_forged_answers_total', 'counter', []],
  ['portwide_policy_compile_duration_seconds', 'histogram', [], COMPILE_BUCKETS],
  ['portwide_policy_apply_duration_seconds', 'histogram', FAMILY, SYNC_BUCKETS],
  ['portwide_policy_apply_failures_total', 'counter', FAMILY],
  ['portwide_policy_external_changes_total', 'counter', FAMILY],
  ['portwide_policy_last_queued_timestamp_seconds', 'gauge', FAMILY],
  ['portwide_policy_last_applied_timestamp_seconds', 'gauge', FAMILY],
];
const ALL = [...KUBE_PROXY, ...PORTWIDE, ...POLICY];

const NAMES = {
  names: 1,
  addresses: 1,
  evictions: 0,
  queries: 0,
  answers: 0,
  unasked: 0,
  unreadable: 0,
  givenUp: 0,
  overdue: 0,
  notLearned: 0,
  isNotObserving: false,
};

/** An agent with a value for every metric. */
async function experienced(): Promise<Scrape> {
  const { backends, table, metrics, pass, start, scrape } = fakeAgent();
  for (const backend of backends) {
    backend.report = { written: 1, rulesWritten: new Map([['nat', 1]]) };
    backend.has = {
      rules: new Map([['nat', 1]]),
      marks: { inUse: 1, waiting: 0 },
      drainingVips: 0,
      elements: new Map([['endpoints', 1]]),
      cleanupFailures: 0,
    };
    backend.rejections = [['UDP', 1]];
  }
  table.upsert(service({ portsAnnotation: 'all', clusterIPs: ['10.96.0.10', 'fd00::a'] }));
  await start();
  table.upsert(slice([endpoint('10.0.0.1')], { triggerTime: Date.now() + 1000 }));
  await pass(1000);
  backends[0].error = new IptablesError('iptables-restore', 'busy', undefined, undefined);
  table.upsert(slice([endpoint('10.0.0.2')]));
  await pass(0);
  metrics.healthz.inc({ code: 200 });
  metrics.livez.inc({ code: 503 });
  metrics.localhostListenFailures.inc({ ip_family: 'IPv4' });
  metrics.localhostConnections.inc({ ip_family: 'IPv4', result: 'forwarded' });
  metrics.stallSeconds.observe(0.1);
  metrics.api.request({ method: 'GET', host: '10.96.0.1:443', code: 200, seconds: 0.1 });
  metrics.api.watchOpen('Service', true);
  metrics.api.upToDate('Service');
  const policy = policyMetrics(
    metricDefiner(metrics.registry),
    {
      policies: () => [{ kind: 'NetworkPolicy', state: 'sound', count: 1 }],
      unreadable: () => [{ kind: 'CIDRGroup', count: 1 }],
      policySets: () => [{ direction: 'ingress', count: 1 }],
      elements: () => [{ family: 'IPv4', set: 'peers', count: 1 }],
      names: () => NAMES,
      queueDrops: async () => 1,
      forgedAnswers: async () => 1,
      denied: async () => [{ family: 'IPv4', tier: 'admin', direction: 'ingress', count: 1 }],
    },
    ['IPv4'],
  );
  policy.compileSeconds.observe(0.1);
  policy.applySeconds.observe({ ip_family: 'IPv4' }, 0.1);
  return await scrape();
}

/** Without the series that Prometheus adds to a histogram. */
function labelsOf({ samples }: Scraped): string[] {
  const names = samples.flatMap(({ labels }) => Object.keys(labels));
  return [...new Set(names)].filter((name) => name !== 'le').sort();
}

function bucketsOf({ samples }: Scraped): number[] {
  const [first] = samples;
  const { le: _, ...series } = first?.labels ?? {};
  return samples
    .filter(({ name }) => name.endsWith('_bucket'))
    .filter(({ labels }) => Object.entries(series).every(([key, value]) => labels[key] === value))
    .map(({ labels }) => labels.le ?? '')
    .filter((le) => le !== '+Inf')
    .map(Number);
}

describe('names: metric names', () => {
  let scraped: Scrape;
  before(async () => {
    scraped = await experienced();
  });

  for (const [name, type, labels, buckets] of ALL) {
    it(`exports ${name} with its type, labels and buckets`, () => {
      const metric = scraped.metrics.get(name);
      assert.ok(metric !== undefined, 'missing');
      assert.equal(metric.type, type);
      assert.deepEqual(labelsOf(metric), labels);
      assert.deepEqual(bucketsOf(metric), buckets ?? []);
      assert.ok(metric.help.length > 0 && metric.samples.length > 0);
    });
  }

  it('exports all metrics of the dashboard and the alerts', () => {
    for (const [name, { type, labels }] of Object.entries(METRIC_NAMES)) {
      const row = ALL.find(([known]) => known === name);
      assert.deepEqual(row?.slice(1, 3), [type, labels.toSorted()], name);
    }
  });

  it('exports no unlisted metric', () => {
    const names = [...scraped.metrics.keys()].filter((name) => !/^(nodejs|process)_/.test(name));
    const known = ALL.map(([name]) => name);
    assert.deepEqual(
      names.filter((name) => !known.includes(name)),
      [],
    );
  });
});
