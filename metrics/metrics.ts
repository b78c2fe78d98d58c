/** metrics/ has what this process tells Prometheus; here all metrics of the agent come together. */
import type { IpFamily } from '../api/objects.ts';
import { apiServerMetrics } from './api-server.ts';
import { createRegistry, metricDefiner } from './define.ts';
import { type KubeProxySources, kubeProxyMetrics } from './kube-proxy.ts';
import { type Feature, kubernetesInfo } from './kubernetes-info.ts';
import { type PortwideSources, portwideMetrics } from './portwide.ts';

export interface MetricSources extends KubeProxySources, PortwideSources {}

export type Metrics = ReturnType<typeof createMetrics>;

/**
 * All metrics of the agent, in a registry of their own.
 * @param sources asked at each scrape.
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
    /** Turns what the session with the API server does into metrics. */
    api: apiServerMetrics(define),
    ...kubeProxyMetrics(define, sources),
    ...portwideMetrics(define, sources, version),
  };
}

/**
 * Shows what happens rarely, and is better never seen, as 0 from the start: a first failure is an
 * increase then, which a query can find.
 */
export function initFamily(metrics: Metrics, family: IpFamily): void {
  const { restoreFailures, partialRestoreFailures, nftSyncFailures, conntrackDeleted } = metrics;
  const rare = [restoreFailures, partialRestoreFailures, nftSyncFailures, conntrackDeleted];
  for (const counter of rare) {
    counter.inc({ ip_family: family }, 0);
  }
}
