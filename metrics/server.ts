/** HTTP pages of the agent's metrics server. */
import type { RequestListener } from 'node:http';
import type { Registry } from 'prom-client';
import { metricsPage, type Pages, pageHandler, TEXT } from './pages.ts';
import { createSlis } from './slis.ts';
import { flagzPage, type Statusz, statuszPage } from './zpages.ts';

/** Content of the pages of the metrics server. */
export interface MetricsPages {
  readonly registry: Registry;
  /** Name of the proxy mode. */
  readonly mode: string;
  /**
   * The configuration in force (`KubeProxyConfiguration`) for `/configz`; undefined disables the
   * page.
   */
  readonly configuration?: (() => object) | undefined;
  /** Content of `/statusz`; undefined disables the page. */
  readonly statusz?: Pick<Statusz, 'component' | 'started' | 'version'> | undefined;
  /** Content of `/flagz`, flags by name without dashes; undefined disables the page. */
  readonly flagz?:
    | { readonly component: string; readonly flags: Readonly<Record<string, string>> }
    | undefined;
}

/** kube-proxy's key for its configuration. */
const CONFIGURATION_KEY = 'kubeproxy.config.k8s.io';

/** kube-proxy's pages on `--metrics-bind-address`, without profiling. */
export function metricsHandler(content: MetricsPages): RequestListener {
  const { registry, mode, configuration, statusz, flagz } = content;
  const slis = createSlis();
  const pages: Pages = {
    '/metrics': metricsPage(registry),
    '/metrics/slis': metricsPage(slis.registry),
    '/healthz': () => {
      // The response is the whole check. Kubernetes names this check "ping".
      slis.passed('ping', 'healthz');
      return { type: TEXT, body: 'ok' };
    },
    '/proxyMode': () => ({ type: TEXT, body: mode }),
    ...(configuration && {
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
