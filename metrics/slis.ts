/** The metrics of health checks, `/metrics/slis`. */
import { Registry } from 'prom-client';
import { metricDefiner } from './define.ts';

/** Results of health checks (KEP-3466), which have a page of their own: component-base's metrics (metrics/prometheus/slis). */
export function createSlis() {
  const registry = new Registry();
  const { counter, gauge } = metricDefiner(registry);
  const last = gauge('kubernetes_healthcheck', '1 when the health check last passed, otherwise 0', [
    'name',
    'type',
  ]);
  const total = counter('kubernetes_healthchecks_total', 'Results of the health check so far', [
    'name',
    'type',
    'status',
  ]);
  return {
    registry,
    /** @param type the page that ran the check: `healthz`. There is no check here that could fail. */
    passed(name: string, type: string) {
      last.set({ name, type }, 1);
      total.inc({ name, type, status: 'success' });
    },
  };
}
