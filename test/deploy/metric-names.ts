/**
 * Metrics that the dashboard and the alert rules use: name, type, labels. Names that begin with
 * kubeproxy_ are kube-proxy's.
 */
export interface MetricName {
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly labels: readonly string[];
}

export const METRIC_NAMES: Readonly<Record<string, MetricName>> = {
  kubeproxy_sync_proxy_rules_duration_seconds: { type: 'histogram', labels: ['ip_family'] },
  kubeproxy_sync_full_proxy_rules_duration_seconds: { type: 'histogram', labels: ['ip_family'] },
  kubeproxy_sync_partial_proxy_rules_duration_seconds: { type: 'histogram', labels: ['ip_family'] },
  kubeproxy_sync_proxy_rules_last_timestamp_seconds: { type: 'gauge', labels: ['ip_family'] },
  kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds: {
    type: 'gauge',
    labels: ['ip_family'],
  },
  kubeproxy_network_programming_duration_seconds: { type: 'histogram', labels: ['ip_family'] },
  kubeproxy_sync_proxy_rules_endpoint_changes_pending: { type: 'gauge', labels: [] },
  kubeproxy_sync_proxy_rules_endpoint_changes_total: { type: 'counter', labels: [] },
  kubeproxy_sync_proxy_rules_service_changes_pending: { type: 'gauge', labels: [] },
  kubeproxy_sync_proxy_rules_service_changes_total: { type: 'counter', labels: [] },
  kubeproxy_sync_proxy_rules_iptables_restore_failures_total: {
    type: 'counter',
    labels: ['ip_family'],
  },
  kubeproxy_sync_proxy_rules_iptables_total: { type: 'gauge', labels: ['table', 'ip_family'] },
  kubeproxy_sync_proxy_rules_no_local_endpoints_total: {
    type: 'gauge',
    labels: ['traffic_policy', 'ip_family'],
  },
  kubeproxy_proxy_healthz_total: { type: 'counter', labels: ['code'] },
  kubeproxy_conntrack_reconciler_deleted_entries_total: { type: 'counter', labels: ['ip_family'] },
  /** 0 until every IP family has synced once. */
  portwide_initial_sync_complete: { type: 'gauge', labels: [] },
  /** 1 while the API server has no Node with the agent's name. */
  portwide_node_missing: { type: 'gauge', labels: [] },
  portwide_all_ports_services: { type: 'gauge', labels: ['kind'] },
  portwide_refused_services: { type: 'gauge', labels: ['reason'] },
  portwide_routes: { type: 'gauge', labels: ['kind', 'ip_family'] },
  portwide_backend_apply_duration_seconds: { type: 'histogram', labels: ['ip_family'] },
  /** One sample a second: the longest stall in it. */
  portwide_event_loop_stall_seconds: { type: 'histogram', labels: [] },
  /** 1 while the watch is open, 0 otherwise. */
  portwide_api_watch_state: { type: 'gauge', labels: ['kind'] },
  /** Bookmarks count as events. */
  portwide_api_last_event_timestamp_seconds: { type: 'gauge', labels: ['kind'] },
  /** 0 from the first watch attempt on. */
  portwide_api_stalled_watches_total: { type: 'counter', labels: ['kind'] },
  portwide_marks_in_use: { type: 'gauge', labels: ['ip_family'] },
  /** Services that are rejected because no packet mark is left. */
  portwide_marks_exhausted: { type: 'gauge', labels: ['ip_family'] },
  portwide_policies: { type: 'gauge', labels: ['kind', 'state'] },
  portwide_policy_unreadable_objects: { type: 'gauge', labels: ['kind'] },
  portwide_policy_dns_uninspected: { type: 'gauge', labels: [] },
  portwide_policy_denied_packets_total: {
    type: 'counter',
    labels: ['tier', 'direction', 'ip_family'],
  },
  portwide_policy_apply_duration_seconds: { type: 'histogram', labels: ['ip_family'] },
  portwide_policy_last_queued_timestamp_seconds: { type: 'gauge', labels: ['ip_family'] },
  portwide_policy_last_applied_timestamp_seconds: { type: 'gauge', labels: ['ip_family'] },
  // prom-client's own metrics.
  process_cpu_seconds_total: { type: 'counter', labels: [] },
  process_resident_memory_bytes: { type: 'gauge', labels: [] },
};

/** The metric of a series; a histogram has several series. */
export function metricOf(series: string): string {
  const base = series.replace(/_(bucket|count|sum)$/, '');
  return METRIC_NAMES[base]?.type === 'histogram' ? base : series;
}
