/** The pages of the agent's metrics server. */
import type { RequestListener } from 'node:http';
import type { Registry } from 'prom-client';
import { metricsPage, type Pages, pageHandler, TEXT } from './pages.ts';
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
