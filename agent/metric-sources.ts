import type { MetricSources } from '../metrics/metrics.ts';
import { NO_CONFIG_CHANGES } from '../metrics/portwide.ts';
import type { Backend } from '../proxier/backend.ts';
import type { RouteTable } from '../proxier/route-table.ts';
import type { Takeover } from '../takeover/takeover.ts';

/**
 * Where metrics find the numbers that the parts of the agent keep.
 * @param backends those that run; none before the mode has started.
 * @param localhostListeners node ports that are listened on, by family.
 * @param takeover what other modes left.
 * @param configChanges changes of the configuration file; none by default.
 */
export function metricSources(
  table: RouteTable,
  backends: () => readonly Backend[],
  localhostListeners: MetricSources['localhostListeners'],
  takeover: Pick<Takeover, 'kept'>,
  configChanges = () => NO_CONFIG_CHANGES,
): MetricSources {
  const numbers = () =>
    backends().map((backend) => ({ family: backend.family, ...backend.numbers?.() }));
  return {
    changes: () => table.changes,
    localhostListeners,
    localhostRejections: async () => {
      const rejections = backends().map(async (backend) =>
        [...((await backend.localhostRejections?.()) ?? [])].map(([protocol, packets]) => ({
          family: backend.family,
          protocol,
          packets,
        })),
      );
      return (await Promise.all(rejections)).flat();
    },
    configChanges,
    refusals: () => table.refusals(),
    servicesOnNodePorts: () => table.onNodePorts,
    noLocal: () => table.counts.noLocal(),
    routes: () => table.counts.routes(),
    allPortsServices: () => table.counts.allPortsServices(),
    rules: () =>
      numbers().flatMap(({ family, rules = [] }) =>
        [...rules].map(([name, count]) => ({ family, table: name, count })),
      ),
    elements: () =>
      numbers().flatMap(({ family, elements = [] }) =>
        [...elements].map(([map, count]) => ({ family, map, count })),
      ),
    cleanupFailures: () =>
      numbers().flatMap(({ family, cleanupFailures: count }) =>
        count === undefined ? [] : [{ family, count }],
      ),
    marks: () =>
      numbers().flatMap(({ family, marks }) => (marks === undefined ? [] : [{ family, ...marks }])),
    lingeringVips: () =>
      numbers().flatMap(({ family, lingeringVips: count }) =>
        count === undefined ? [] : [{ family, count }],
      ),
    kept: () => takeover.kept(),
  };
}
