/** Where metrics find the numbers that the parts of the agent keep. */
import type { IpFamily } from '../api/objects.ts';
import type { NodePortProxy } from '../localhost/node-port-proxy.ts';
import { NO_CONFIG_CHANGES } from '../metrics/portwide.ts';
import type { Backend, BackendStats } from '../proxier/backend.ts';
import type { RouteTable } from '../proxier/route-table.ts';
import type { Takeover } from '../takeover/takeover.ts';

export type AgentMetricSources = ReturnType<typeof createMetricSources>;

/**
 * The numbers of an agent. Those of parts that do not run yet are left out of metrics until `register`.
 * @param configChanges changes of the configuration file; none by default.
 */
export function createMetricSources(
  table: RouteTable,
  takeover: Pick<Takeover, 'remaining'>,
  configChanges = () => NO_CONFIG_CHANGES,
) {
  let backends: readonly Backend[] = [];
  let localhost: Pick<NodePortProxy, 'listeners'> = { listeners: () => [] };

  /** One of the numbers, of the backends that have it. */
  const of = <Name extends keyof BackendStats>(name: Name) =>
    backends.flatMap((backend): [IpFamily, NonNullable<BackendStats[Name]>][] => {
      const number = backend.stats?.()[name];
      return number === undefined ? [] : [[backend.family, number]];
    });
  const counts = (name: 'rules' | 'elements') =>
    of(name).flatMap(([family, each]) =>
      [...each].map(([key, count]) => ({ family, name: key, count })),
    );
  return {
    /** The mode has started, and serves node ports on localhost. */
    register: (ofMode: readonly Backend[], onLocalhost: Pick<NodePortProxy, 'listeners'>) => {
      backends = ofMode;
      localhost = onLocalhost;
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
    changes: () => table.changes,
    refusals: () => table.refusals(),
    servicesOnListenerPorts: () => table.servicesOnListenerPorts,
    noLocal: () => table.counts.noLocal(),
    routes: () => table.counts.routes(),
    allPortsServices: () => table.counts.allPortsServices(),
    rules: () => counts('rules').map(({ name: table, ...rest }) => ({ table, ...rest })),
    elements: () => counts('elements').map(({ name: map, ...rest }) => ({ map, ...rest })),
    cleanupFailures: () => of('cleanupFailures').map(([family, count]) => ({ family, count })),
    marks: () => of('marks').map(([family, marks]) => ({ family, ...marks })),
    drainingVips: () => of('drainingVips').map(([family, count]) => ({ family, count })),
    remainingState: () => takeover.remaining(),
  };
}
