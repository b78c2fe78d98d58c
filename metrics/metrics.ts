/**
 * metrics/ exports the metrics of the process to Prometheus. This file combines the metrics of the
 * agent.
 */
import type { IpFamily } from '../api/objects.ts';
import { apiServerMetrics } from './api-server.ts';
import { createRegistry, metricDefiner } from './define.ts';
import { type KubeProxySources, kubeProxyMetrics } from './kube-proxy.ts';
import { type Feature, kubernetesInfo } from './kubernetes-info.ts';
import { type PortwideSources, portwideMetrics } from './portwide.ts';

export interface MetricSources extends KubeProxySources, PortwideSources {}

export type Metrics = ReturnType<typeof createMetrics>;

/**
 * Creates the metrics of the agent in their own registry. `policyMetrics` adds the metrics of network
 * policy.
 * @param sources values collected at each scrape.
 * @param version of the package.
 * @param features for `kubernetes_feature_enabled`.
 */
export function createMetrics(
  sources: MetricSources,
  version: string,
  features: readonly Feature[] = [],
) {
  const registry = createRegistry();
  const define = metricDefiner(registry);
  kubernetesInfo(define, version, features);
  return {
    registry,
    /** Turns the events of the API server session into metrics. */
    api: apiServerMetrics(define),
    ...kubeProxyMetrics(define, sources),
    ...portwideMetrics(define, sources, version),
  };
}

/**
 * Initializes rarely incremented counters to 0, so that a query sees the first increment as an
 * increase.
 */
export function initFamilyCounters(metrics: Metrics, family: IpFamily): void {
  const { restoreFailures, partialRestoreFailures, nftSyncFailures, conntrackDeleted } = metrics;
  const rare = [restoreFailures, partialRestoreFailures, nftSyncFailures, conntrackDeleted];
  for (const counter of rare) {
    counter.inc({ ip_family: family }, 0);
  }
}
