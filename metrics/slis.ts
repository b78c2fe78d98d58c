/** Metrics of health checks, `/metrics/slis`. */
import { Registry } from 'prom-client';
import { metricDefiner } from './define.ts';

/**
 * Metrics of health check results (KEP-3466) on their own page, as in component-base
 * (metrics/prometheus/slis).
 */
export function createSlis() {
  const registry = new Registry();
  const { counter, gauge } = metricDefiner(registry);
  const last = gauge(
    'kubernetes_healthcheck',
    '1 if the last health check succeeded, otherwise 0.',
    ['name', 'type'],
  );
  const total = counter('kubernetes_healthchecks_total', 'Total number of health check results.', [
    'name',
    'type',
    'status',
  ]);
  return {
    registry,
    /** Counts a successful check; none of the checks can fail. @param type page of the check: `healthz`. */
    passed(name: string, type: string) {
      last.set({ name, type }, 1);
      total.inc({ name, type, status: 'success' });
    },
  };
}
