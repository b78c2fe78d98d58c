import type { RequestListener } from 'node:http';
import type { Registry } from 'prom-client';
import { createSlis } from './slis.ts';
import { flagzPage, type Statusz, statuszPage } from './zpages.ts';

/** What the pages of the metrics server show. */
export interface MetricsPages {
  readonly registry: Registry;
  /** The proxy mode's name. */
  readonly mode: string;
  /** The configuration in force (`KubeProxyConfiguration`), for `/configz`; without it, no such page. */
  readonly configuration?: (() => object) | undefined;
  /** Content of `/statusz`; without it there is no such page. */
  readonly statusz?: Pick<Statusz, 'component' | 'started' | 'version'> | undefined;
  /** Content of `/flagz`, flags by name without dashes; without it there is no such page. */
  readonly flagz?:
    | { readonly component: string; readonly flags: Readonly<Record<string, string>> }
    | undefined;
}

/** What is at a path. */
export interface Page {
  readonly type: string;
  readonly body: string;
  /** HTTP status; 200 unless it says otherwise. */
  readonly code?: number;
}

/** Pages by path. Each is made per request, from the `Accept` header. */
export type Pages = Readonly<Record<string, (accept: string | undefined) => Page | Promise<Page>>>;

export const TEXT = 'text/plain; charset=utf-8';
/** The key that kube-proxy puts its configuration under. */
const CONFIGURATION_KEY = 'kubeproxy.config.k8s.io';

/** The pages that kube-proxy has on `--metrics-bind-address`, but for profiling. */
export function metricsHandler(of: MetricsPages): RequestListener {
  const { registry, mode, configuration, statusz, flagz } = of;
  const slis = createSlis();
  const pages: Pages = {
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
    ...(statusz && {
      '/statusz': (accept) => {
        const paths = Object.keys(pages);
        return statuszPage({ ...statusz, now: Date.now(), paths }, accept);
      },
    }),
    ...(flagz && { '/flagz': (accept) => flagzPage(flagz.component, flagz.flags, accept) }),
  };
  return pageHandler(pages);
}

/** The metrics of a registry. */
export function metricsPage(registry: Registry): () => Promise<Page> {
  return async () => ({ type: registry.contentType, body: await registry.metrics() });
}

/** Serves pages; a page that cannot be made is an error 500, and any other path not found. */
export function pageHandler(pages: Pages): RequestListener {
  const answer = async (path: string, accept: string | undefined): Promise<Required<Page>> => {
    const page = Object.hasOwn(pages, path) ? pages[path] : undefined;
    if (page === undefined) return { code: 404, type: TEXT, body: '404 page not found\n' };
    try {
      return { code: 200, ...(await page(accept)) };
    } catch (error) {
      return { code: 500, type: TEXT, body: `${String(error)}\n` };
    }
  };
  return (request, response) => {
    const path = request.url?.split('?')[0] ?? '';
    void answer(path, request.headers.accept).then(({ code, type, body }) => {
      const headers = { 'content-type': type, 'x-content-type-options': 'nosniff' };
      response.writeHead(code, headers).end(body);
    });
  };
}
