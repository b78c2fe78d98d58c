import type { RequestListener } from 'node:http';
import type { Registry } from 'prom-client';
import { createSlis } from './slis.ts';

/** What the pages of the metrics server show. */
export interface MetricsPages {
  readonly registry: Registry;
  /** The proxy mode's name. */
  readonly mode: string;
  /** The configuration in force (`KubeProxyConfiguration`), for `/configz`; without it, no such page. */
  readonly configuration?: (() => object) | undefined;
}

/** What is at a path. */
export interface Page {
  readonly type: string;
  readonly body: string;
  /** HTTP status; 200 unless it says otherwise. */
  readonly code?: number;
}

/** Pages by their paths, made anew for each request. */
export type Pages = Readonly<Record<string, () => Page | Promise<Page>>>;

export const TEXT = 'text/plain; charset=utf-8';
/** The key that kube-proxy puts its configuration under. */
const CONFIGURATION_KEY = 'kubeproxy.config.k8s.io';

/** The pages that kube-proxy has on `--metrics-bind-address`, but for profiling. */
export function metricsHandler({ registry, mode, configuration }: MetricsPages): RequestListener {
  const slis = createSlis();
  return pageHandler({
    '/metrics': metricsPage(registry),
    '/metrics/slis': metricsPage(slis.registry),
    '/healthz': () => {
      // To answer is the whole of the check, which Kubernetes calls "ping".
      slis.passed('ping', 'healthz');
      return { type: TEXT, body: 'ok' };
    },
    '/proxyMode': () => ({ type: TEXT, body: mode }),
    ...(configuration === undefined
      ? {}
      : {
          '/configz': () => ({
            type: 'application/json',
            body: JSON.stringify({ [CONFIGURATION_KEY]: configuration() }),
          }),
        }),
  });
}

/** The metrics of a registry. */
export function metricsPage(registry: Registry): () => Promise<Page> {
  return async () => ({ type: registry.contentType, body: await registry.metrics() });
}

/** Serves pages; a page that cannot be made is an error 500, and any other path not found. */
export function pageHandler(pages: Pages): RequestListener {
  const answer = async (path: string): Promise<Required<Page>> => {
    const page = Object.hasOwn(pages, path) ? pages[path] : undefined;
    if (page === undefined) return { code: 404, type: TEXT, body: '404 page not found\n' };
    try {
      return { code: 200, ...(await page()) };
    } catch (error) {
      return { code: 500, type: TEXT, body: `${String(error)}\n` };
    }
  };
  return (request, response) => {
    void answer(request.url?.split('?')[0] ?? '').then(({ code, type, body }) => {
      const headers = { 'content-type': type, 'x-content-type-options': 'nosniff' };
      response.writeHead(code, headers).end(body);
    });
  };
}
