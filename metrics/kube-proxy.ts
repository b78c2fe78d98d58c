/**
 * The metrics of kube-proxy that Portwide has too, with kube-proxy's names, types, labels and buckets
 * (pkg/proxy/metrics), so that dashboards and alerts go on working. docs/metrics.md has a table of
 * them, and of those that are left out.
 */
import type { IpFamily, Protocol } from '../api/objects.ts';
import { linear, type MetricDefiner, SYNC_BUCKETS } from './define.ts';

/** Where the numbers are that are asked for at each scrape. */
export interface KubeProxySources {
  /** Changes of Services and EndpointSlices: since the start, and those that no sync has taken up. */
  changes(): Readonly<Record<'Service' | 'EndpointSlice', { total: number; pending: number }>>;
  /** Routes with a Local policy and no endpoint on this node. */
  noLocal(): Iterable<{ family: IpFamily; policy: 'internal' | 'external'; count: number }>;
  /** Rules of iptables that are ours, by table. */
  rules(): Iterable<{ family: IpFamily; table: string; count: number }>;
  /** Of mode nftables: how often something of no use could not be removed. */
  cleanupFailures(): Iterable<{ family: IpFamily; count: number }>;
  /** Of mode nftables: node ports that are listened on at a loopback address. */
  localhostListeners(): Iterable<readonly [IpFamily, number]>;
  /** Of mode nftables: packets that rules rejected at a loopback address. */
  localhostRejections(): Promise<Iterable<{ family: IpFamily; protocol: Protocol; count: number }>>;
}

/** Seconds of the network programming latency SLI: up to 5 minutes. */
const NETWORK_BUCKETS = [
  ...linear(0.25, 0.25, 2),
  ...linear(1, 1, 59),
  ...linear(60, 5, 12),
  ...linear(120, 30, 7),
];

const SYNC = 'kubeproxy_sync_proxy_rules';
const FAMILY = ['ip_family'] as const;

export function kubeProxyMetrics(define: MetricDefiner, sources: KubeProxySources) {
  const { counter, gauge, histogram, collected: asked, collectedValue: askedOne } = define;
  for (const [kind, word] of [
    ['EndpointSlice', 'endpoint'],
    ['Service', 'service'],
  ] as const) {
    const changes = () => sources.changes()[kind];
    askedOne(
      'gauge',
      `${SYNC}_${word}_changes_pending`,
      `Changes of ${kind} objects that no sync of the rules has taken up`,
      () => changes().pending,
    );
    askedOne(
      'counter',
      `${SYNC}_${word}_changes_total`,
      `Changes of ${kind} objects seen so far`,
      () => changes().total,
    );
  }
  asked(
    'gauge',
    `${SYNC}_no_local_endpoints_total`,
    'Service ports with the traffic policy Local that have endpoints, but none on this node',
    ['traffic_policy', 'ip_family'],
    () => [...sources.noLocal()].map((each) => ({ ...each, traffic_policy: each.policy })),
  );
  asked(
    'gauge',
    'kubeproxy_nftables_localhost_nodeport_listeners',
    'Node ports that are listened on at 127.0.0.1 or [::1] (mode nftables)',
    FAMILY,
    () => [...sources.localhostListeners()].map(([family, count]) => ({ family, count })),
  );
  asked(
    'counter',
    'kubeproxy_nftables_localhost_nodeport_rejected_packets_total',
    'Packets of UDP and SCTP to node ports at 127.0.0.1 or [::1] that were rejected, since the table was made (mode nftables)',
    ['ip_family', 'protocol'],
    () => sources.localhostRejections(),
  );
  asked('gauge', `${SYNC}_iptables_total`, 'Rules of iptables owned', ['table', 'ip_family'], () =>
    sources.rules(),
  );
  asked(
    'counter',
    `${SYNC}_nftables_cleanup_failures_total`,
    'Failures so far to remove what is of no use from the table (mode nftables)',
    FAMILY,
    () => sources.cleanupFailures(),
  );
  return {
    syncSeconds: histogram(`${SYNC}_duration_seconds`, 'Seconds a sync took', SYNC_BUCKETS, FAMILY),
    fullSyncSeconds: histogram(
      'kubeproxy_sync_full_proxy_rules_duration_seconds',
      'Seconds a sync took that compared everything',
      SYNC_BUCKETS,
      FAMILY,
    ),
    partialSyncSeconds: histogram(
      'kubeproxy_sync_partial_proxy_rules_duration_seconds',
      'Seconds a sync took that wrote only what had changed',
      SYNC_BUCKETS,
      FAMILY,
    ),
    lastSync: gauge(`${SYNC}_last_timestamp_seconds`, 'When a sync last succeeded', FAMILY),
    lastQueued: gauge(
      `${SYNC}_last_queued_timestamp_seconds`,
      'When a sync was last asked for; much later than the last success: something hangs',
      FAMILY,
    ),
    networkProgrammingSeconds: histogram(
      'kubeproxy_network_programming_duration_seconds',
      'Seconds from a change of a Service or pod until the rules of this node followed',
      NETWORK_BUCKETS,
      FAMILY,
    ),
    restoreFailures: counter(
      `${SYNC}_iptables_restore_failures_total`,
      'Failures of iptables-restore so far',
      FAMILY,
    ),
    partialRestoreFailures: counter(
      `${SYNC}_iptables_partial_restore_failures_total`,
      'Failures of iptables-restore so far in syncs that wrote only what had changed',
      FAMILY,
    ),
    nftSyncFailures: counter(
      `${SYNC}_nftables_sync_failures_total`,
      'Syncs so far that failed because nft or the kernel refused a transaction (mode nftables)',
      FAMILY,
    ),
    rulesWritten: gauge(`${SYNC}_iptables_last`, 'Rules of iptables written by the last sync', [
      'table',
      'ip_family',
    ]),
    conntrackSeconds: histogram(
      'kubeproxy_conntrack_reconciler_sync_duration_seconds',
      'Seconds it took to look for stale conntrack entries',
      SYNC_BUCKETS,
      FAMILY,
    ),
    conntrackDeleted: counter(
      'kubeproxy_conntrack_reconciler_deleted_entries_total',
      'Stale conntrack entries deleted so far',
      FAMILY,
    ),
    localhostListenFailures: counter(
      'kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total',
      'Node ports so far that could not be listened on at 127.0.0.1 or [::1] (mode nftables)',
      FAMILY,
    ),
    healthz: counter(
      'kubeproxy_proxy_healthz_total',
      'Answers of /healthz so far, by HTTP status',
      ['code'],
    ),
    livez: counter('kubeproxy_proxy_livez_total', 'Answers of /livez so far, by HTTP status', [
      'code',
    ]),
  };
}
