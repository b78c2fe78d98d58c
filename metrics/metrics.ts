import type { Registry } from 'prom-client';
import type { IpFamily } from '../api/objects.ts';
import { type ApiObserver, apiServerMetrics } from './api-server.ts';
import { definer } from './define.ts';
import { type KubeProxyMetrics, type KubeProxySources, kubeProxyMetrics } from './kube-proxy.ts';
import { type Feature, kubernetesInfo } from './kubernetes-info.ts';
import { type PortwideMetrics, type PortwideSources, portwideMetrics } from './portwide.ts';
import { createRegistry } from './registry.ts';

export interface MetricSources extends KubeProxySources, PortwideSources {}

export interface Metrics extends KubeProxyMetrics, PortwideMetrics {
  readonly registry: Registry;
  /** Turns what the session with the API server does into metrics. */
  readonly api: ApiObserver;
}

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
): Metrics {
  const registry = createRegistry();
  const define = definer(registry);
  kubernetesInfo(define, version, features);
  return {
    registry,
    api: apiServerMetrics(define),
    ...kubeProxyMetrics(define, sources),
    ...portwideMetrics(define, sources, version),
  };
}

/**
 * Shows what happens rarely, and is better never seen, as 0 from the start: a first failure is an
 * increase then, which a query can find.
 */
export function startFamily(metrics: Metrics, family: IpFamily): void {
  const { restoreFailures, partialRestoreFailures, nftSyncFailures, conntrackDeleted } = metrics;
  const rare = [restoreFailures, partialRestoreFailures, nftSyncFailures, conntrackDeleted];
  for (const counter of rare) {
    counter.inc({ ip_family: family }, 0);
  }
}
