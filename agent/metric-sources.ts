/** Collects the values of metrics from the parts of the agent, at each scrape. */
import type { IpFamily } from '../api/objects.ts';
import type { EndpointWithoutSlice } from '../endpoints/slice-owners.ts';
import type { NodePortProxy } from '../localhost/node-port-proxy.ts';
import { NO_CONFIG_CHANGES } from '../metrics/portwide.ts';
import type { Backend, BackendStats } from '../proxier/backend.ts';
import type { RouteTable } from '../proxier/route-table.ts';
import type { Takeover } from '../takeover/takeover.ts';

export type AgentMetricSources = ReturnType<typeof createMetricSources>;

/**
 * Creates the sources of the agent's metrics. The metrics of backends are absent until `register`.
 * @param configChanges counts of changes of the configuration file.
 */
export function createMetricSources(
  table: RouteTable,
  takeover: Pick<Takeover, 'remaining'>,
  configChanges = () => NO_CONFIG_CHANGES,
) {
  let backends: readonly Backend[] = [];
  let localhost: Pick<NodePortProxy, 'listeners'> = { listeners: () => [] };

  /** The value of a stat by family, from the backends that have this stat. */
  const stat = <Name extends keyof BackendStats>(name: Name) =>
    backends.flatMap((backend): [IpFamily, NonNullable<BackendStats[Name]>][] => {
      const value = backend.stats?.()[name];
      return value === undefined ? [] : [[backend.family, value]];
    });
  const counts = (name: 'rules' | 'elements') =>
    stat(name).flatMap(([family, each]) =>
      [...each].map(([key, count]) => ({ family, name: key, count })),
    );
  return {
    /** Adds the backends of the started mode and the proxy for node ports on localhost. */
    register: (modeBackends: readonly Backend[], proxy: Pick<NodePortProxy, 'listeners'>) => {
      backends = modeBackends;
      localhost = proxy;
    },
    configChanges,
    localhostListeners: () => localhost.listeners(),
    localhostRejections: async () => {
      const rejections = backends.map(async (backend) =>
        [...((await backend.localhostRejections?.()) ?? [])].map(([protocol, count]) => ({
          family: backend.family,
          protocol,
          count,
        })),
      );
      return (await Promise.all(rejections)).flat();
    },
    changes: () => table.changeCounts,
    refusals: () => table.refusals(),
    servicesOnListenerPorts: () => table.servicesOnListenerPorts,
    withoutLocalEndpoints: () => table.routeCounts.withoutLocalEndpoints(),
    routes: () => table.routeCounts.routes(),
    allPortsServices: () => table.routeCounts.allPortsServices(),
    ownedSlices: () => table.routeCounts.ownedSlices(),
    endpointsWithoutSlice: () => {
      const counts = table.endpointsWithoutSlice;
      return REASONS.map(([text, reason]) => ({ reason, count: counts.get(text) ?? 0 }));
    },
    rules: () => counts('rules').map(({ name: table, ...rest }) => ({ table, ...rest })),
    elements: () => counts('elements').map(({ name: map, ...rest }) => ({ map, ...rest })),
    cleanupFailures: () => stat('cleanupFailures').map(([family, count]) => ({ family, count })),
    marks: () => stat('marks').map(([family, marks]) => ({ family, ...marks })),
    drainingVips: () => stat('drainingVips').map(([family, count]) => ({ family, count })),
    remainingState: () => takeover.remaining(),
  };
}

/** Why an endpoint owns no ports, as a label of metrics. */
const REASON_LABELS: Readonly<Record<EndpointWithoutSlice['reason'], string>> = {
  'has no pod in its namespace': 'NoPod',
  'is on the host network': 'HostNetwork',
  'is in a namespace whose pods cannot be listed': 'PodsNotListed',
  'has no ordinal in its name': 'NoOrdinal',
  'has an ordinal past the last slice': 'OrdinalTooLarge',
  'has the ordinal of another endpoint': 'OrdinalTaken',
};
const REASONS = Object.entries(REASON_LABELS) as [EndpointWithoutSlice['reason'], string][];
