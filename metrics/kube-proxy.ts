/**
 * The kube-proxy metrics that Portwide also has, with kube-proxy's names, types, labels, buckets
 * and HELP texts (pkg/proxy/metrics), so that its dashboards and alerts work. docs/operate/metrics.md lists
 * these metrics, and the kube-proxy metrics that Portwide lacks.
 */
import type { IpFamily, Protocol } from '../api/objects.ts';
import { linearBuckets, type MetricDefiner, SYNC_BUCKETS } from './define.ts';

/** Values collected at each scrape. */
export interface KubeProxySources {
  /** Changes of Services and EndpointSlices: total, and pending until a sync takes them up. */
  changes(): Readonly<Record<'Service' | 'EndpointSlice', { total: number; pending: number }>>;
  /** Service ports with a Local traffic policy and no endpoint on this node. */
  withoutLocalEndpoints(): Iterable<{
    family: IpFamily;
    policy: 'internal' | 'external';
    count: number;
  }>;
  /** iptables rules owned by the agent, by table. */
  rules(): Iterable<{ family: IpFamily; table: string; count: number }>;
  /** Mode nftables: failed removals of unused objects. */
  cleanupFailures(): Iterable<{ family: IpFamily; count: number }>;
  /** Mode nftables: node ports listened on at a loopback address. */
  localhostListeners(): Iterable<readonly [IpFamily, number]>;
  /** Mode nftables: packets to loopback addresses that rules rejected. */
  localhostRejections(): Promise<Iterable<{ family: IpFamily; protocol: Protocol; count: number }>>;
}

/** Seconds. Buckets of the network programming latency SLI, up to 5 minutes. */
const NETWORK_BUCKETS = [
  ...linearBuckets(0.25, 0.25, 2),
  ...linearBuckets(1, 1, 59),
  ...linearBuckets(60, 5, 12),
  ...linearBuckets(120, 30, 7),
];

const SYNC = 'kubeproxy_sync_proxy_rules';
const FAMILY = ['ip_family'] as const;

export function kubeProxyMetrics(define: MetricDefiner, sources: KubeProxySources) {
  const { counter, gauge, histogram, collected, collectedValue } = define;
  for (const [kind, word, object] of [
    ['EndpointSlice', 'endpoint', 'Endpoint'],
    ['Service', 'service', 'Service'],
  ] as const) {
    const changes = () => sources.changes()[kind];
    collectedValue(
      'gauge',
      `${SYNC}_${word}_changes_pending`,
      `Pending proxy rules ${object} changes`,
      () => changes().pending,
    );
    collectedValue(
      'counter',
      `${SYNC}_${word}_changes_total`,
      `Cumulative proxy rules ${object} changes`,
      () => changes().total,
    );
  }
  collected(
    'gauge',
    `${SYNC}_no_local_endpoints_total`,
    'Number of services with a Local traffic policy and no endpoints',
    ['traffic_policy', 'ip_family'],
    () =>
      [...sources.withoutLocalEndpoints()].map((each) => ({
        ...each,
        traffic_policy: each.policy,
      })),
  );
  collected(
    'gauge',
    'kubeproxy_nftables_localhost_nodeport_listeners',
    'Number of node ports listened on at 127.0.0.1 or [::1] (mode nftables).',
    FAMILY,
    () => [...sources.localhostListeners()].map(([family, count]) => ({ family, count })),
  );
  collected(
    'counter',
    'kubeproxy_nftables_localhost_nodeport_rejected_packets_total',
    'Total number of UDP and SCTP packets to node ports at 127.0.0.1 or [::1] that were rejected since the table was created (mode nftables).',
    ['ip_family', 'protocol'],
    () => sources.localhostRejections(),
  );
  collected(
    'gauge',
    `${SYNC}_iptables_total`,
    'Total number of iptables rules owned by kube-proxy',
    ['table', 'ip_family'],
    () => sources.rules(),
  );
  collected(
    'counter',
    `${SYNC}_nftables_cleanup_failures_total`,
    'Cumulative proxy nftables cleanup failures',
    FAMILY,
    () => sources.cleanupFailures(),
  );
  return {
    syncSeconds: histogram(
      `${SYNC}_duration_seconds`,
      'SyncProxyRules latency in seconds',
      SYNC_BUCKETS,
      FAMILY,
    ),
    fullSyncSeconds: histogram(
      'kubeproxy_sync_full_proxy_rules_duration_seconds',
      'SyncProxyRules latency in seconds for full resyncs',
      SYNC_BUCKETS,
      FAMILY,
    ),
    partialSyncSeconds: histogram(
      'kubeproxy_sync_partial_proxy_rules_duration_seconds',
      'SyncProxyRules latency in seconds for partial resyncs',
      SYNC_BUCKETS,
      FAMILY,
    ),
    lastSync: gauge(
      `${SYNC}_last_timestamp_seconds`,
      'The last time proxy rules were successfully synced',
      FAMILY,
    ),
    lastQueued: gauge(
      `${SYNC}_last_queued_timestamp_seconds`,
      'The last time a sync of proxy rules was queued',
      FAMILY,
    ),
    networkProgrammingSeconds: histogram(
      'kubeproxy_network_programming_duration_seconds',
      'In Cluster Network Programming Latency in seconds',
      NETWORK_BUCKETS,
      FAMILY,
    ),
    restoreFailures: counter(
      `${SYNC}_iptables_restore_failures_total`,
      'Cumulative proxy iptables restore failures',
      FAMILY,
    ),
    partialRestoreFailures: counter(
      `${SYNC}_iptables_partial_restore_failures_total`,
      'Cumulative proxy iptables partial restore failures',
      FAMILY,
    ),
    nftSyncFailures: counter(
      `${SYNC}_nftables_sync_failures_total`,
      'Cumulative proxy nftables sync failures',
      FAMILY,
    ),
    rulesWritten: gauge(
      `${SYNC}_iptables_last`,
      'Number of iptables rules written by kube-proxy in last sync',
      ['table', 'ip_family'],
    ),
    conntrackSeconds: histogram(
      'kubeproxy_conntrack_reconciler_sync_duration_seconds',
      'ReconcileConntrackFlowsLatency latency in seconds',
      SYNC_BUCKETS,
      FAMILY,
    ),
    conntrackDeleted: counter(
      'kubeproxy_conntrack_reconciler_deleted_entries_total',
      'Cumulative conntrack flows deleted by conntrack reconciler',
      FAMILY,
    ),
    localhostListenFailures: counter(
      'kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total',
      'Total number of node ports that could not be listened on at 127.0.0.1 or [::1] (mode nftables).',
      FAMILY,
    ),
    healthz: counter('kubeproxy_proxy_healthz_total', 'Cumulative proxy healthz HTTP status', [
      'code',
    ]),
    livez: counter('kubeproxy_proxy_livez_total', 'Cumulative proxy livez HTTP status', ['code']),
  };
}
