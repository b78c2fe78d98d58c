/** The registry that metrics are in. */
import { collectDefaultMetrics, Registry } from 'prom-client';

/** Gauges with the name of a counter, and sums of others; `promtool check metrics` objects. */
const UNWANTED_DEFAULTS = [
  'nodejs_active_handles_total',
  'nodejs_active_requests_total',
  'nodejs_active_resources_total',
];

/** A registry that has the metrics of the process. */
export function createRegistry(): Registry {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  for (const name of UNWANTED_DEFAULTS) registry.removeSingleMetric(name);
  return registry;
}
