/** The pages of the DNS server. */
import type { RequestListener } from 'node:http';
import type { Registry } from 'prom-client';
import { metricsPage, type Page, pageHandler, TEXT } from './pages.ts';

/**
 * What the DNS server tells over HTTP. Probes find each check by Kubernetes' name and by CoreDNS's.
 * @param notReady why queries should not be sent here; undefined when they should.
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
