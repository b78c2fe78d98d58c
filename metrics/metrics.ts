import { createServer, type Server } from 'node:http';
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { RefusalReason } from '../api/all-ports.ts';

const REASONS: readonly RefusalReason[] = [
  'NodePort',
  'ExternalName',
  'Headless',
  'ExternalIPs',
  'Ports',
  'Annotation',
  'FeatureGate',
  'NodeAddress',
  'Overlap',
];

/** kube-proxy's buckets: 1 ms, doubled up to 16 s. */
const SYNC_BUCKETS = Array.from({ length: 15 }, (_, power) => 0.001 * 2 ** power);

export interface Metrics {
  readonly registry: Registry;
  readonly syncSeconds: Histogram<'ip_family'>;
  readonly lastSync: Gauge<'ip_family'>;
  readonly restoreFailures: Counter<'ip_family'>;
  readonly healthz: Counter<'code'>;
  readonly livez: Counter<'code'>;
}

/** @param refused Services refused now, as pairs of Service and reason; asked at each scrape. */
export function createMetrics(
  refused: () => Iterable<{ serviceKey: string; reason: RefusalReason }>,
): Metrics {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  new Gauge({
    name: 'portwide_refused_services',
    help: 'Services that are not served, or not on all of their VIPs, by reason',
    labelNames: ['reason'],
    registers: [registry],
    collect() {
      const services = new Map(REASONS.map((reason) => [reason, new Set<string>()]));
      for (const { serviceKey, reason } of refused()) services.get(reason)?.add(serviceKey);
      for (const [reason, keys] of services) this.set({ reason }, keys.size);
    },
  });
  return {
    registry,
    syncSeconds: new Histogram({
      name: 'kubeproxy_sync_proxy_rules_duration_seconds',
      help: 'SyncProxyRules latency in seconds',
      labelNames: ['ip_family'],
      buckets: SYNC_BUCKETS,
      registers: [registry],
    }),
    lastSync: new Gauge({
      name: 'kubeproxy_sync_proxy_rules_last_timestamp_seconds',
      help: 'The last time proxy rules were successfully synced',
      labelNames: ['ip_family'],
      registers: [registry],
    }),
    restoreFailures: new Counter({
      name: 'kubeproxy_sync_proxy_rules_iptables_restore_failures_total',
      help: 'Cumulative proxy iptables restore failures',
      labelNames: ['ip_family'],
      registers: [registry],
    }),
    healthz: new Counter({
      name: 'kubeproxy_proxy_healthz_total',
      help: 'Cumulative proxy healthz HTTP status',
      labelNames: ['code'],
      registers: [registry],
    }),
    livez: new Counter({
      name: 'kubeproxy_proxy_livez_total',
      help: 'Cumulative proxy livez HTTP status',
      labelNames: ['code'],
      registers: [registry],
    }),
  };
}

/**
 * Serves `/metrics`.
 * @throws Error (EADDRINUSE and the like) when the address cannot be bound.
 */
export async function serveMetrics(
  registry: Registry,
  address: { host: string; port: number },
): Promise<Server> {
  const server = createServer((request, response) => {
    const path = request.url?.split('?')[0];
    if (path !== '/metrics') {
      response.writeHead(404).end();
      return;
    }
    registry.metrics().then(
      (text) => response.writeHead(200, { 'content-type': registry.contentType }).end(text),
      (error: unknown) => response.writeHead(500).end(String(error)),
    );
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    const host = address.host === '' ? {} : { host: address.host };
    server.listen({ port: address.port, ...host }, resolve);
  });
  // Scrapes must not keep an agent alive that was told to end.
  server.unref();
  return server;
}
