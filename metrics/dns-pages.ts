/** HTTP pages of the DNS server. */
import type { RequestListener } from 'node:http';
import type { Registry } from 'prom-client';
import { metricsPage, type Page, pageHandler, TEXT } from './pages.ts';

/**
 * HTTP pages of the DNS server. Each health check has a Kubernetes path and a CoreDNS path.
 * @param notReady returns why the server should get no queries; undefined if it is ready.
 */
export function dnsPages(registry: Registry, notReady: () => string | undefined): RequestListener {
  const health = (): Page => ({ type: TEXT, body: 'OK' });
  const ready = (): Page => {
    const reason = notReady();
    return reason === undefined ? health() : { type: TEXT, body: `${reason}\n`, code: 503 };
  };
  return pageHandler({
    '/metrics': metricsPage(registry),
    '/healthz': health,
    '/health': health,
    '/readyz': ready,
    '/ready': ready,
  });
}
