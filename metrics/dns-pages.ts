import type { RequestListener } from 'node:http';
import type { Registry } from 'prom-client';
import { metricsPage, type Page, pageHandler, TEXT } from './server.ts';

/**
 * What the DNS server tells over HTTP. Probes find each check by Kubernetes' name and by CoreDNS's.
 * @param isReady whether it listens, and knows all records.
 */
export function dnsPages(registry: Registry, isReady: () => boolean): RequestListener {
  const health = (): Page => ({ type: TEXT, body: 'OK' });
  const ready = (): Page =>
    isReady()
      ? { type: TEXT, body: 'OK' }
      : { type: TEXT, body: 'the records are not all there yet\n', code: 503 };
  return pageHandler({
    '/metrics': metricsPage(registry),
    '/healthz': health,
    '/health': health,
    '/readyz': ready,
    '/ready': ready,
  });
}
