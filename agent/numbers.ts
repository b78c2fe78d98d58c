/** Where metrics find the numbers that the parts of the agent keep. */
import type { IpFamily } from '../api/objects.ts';
import type { NodePortProxy } from '../localhost/node-port-proxy.ts';
import type { MetricSources } from '../metrics/metrics.ts';
import { NO_CONFIG_CHANGES } from '../metrics/portwide.ts';
import type { Backend, BackendNumbers } from '../proxier/backend.ts';
import type { RouteTable } from '../proxier/route-table.ts';
import type { Takeover } from '../takeover/takeover.ts';

/** The numbers of an agent. Those of parts that do not run yet are left out of metrics until `register`. */
export class Numbers implements MetricSources {
  readonly #table: RouteTable;
  readonly #takeover: Pick<Takeover, 'kept'>;
  readonly configChanges: MetricSources['configChanges'];
  #backends: readonly Backend[] = [];
  localhostListeners: MetricSources['localhostListeners'] = () => [];

  /** @param configChanges changes of the configuration file; none by default. */
  constructor(
    table: RouteTable,
    takeover: Pick<Takeover, 'kept'>,
    configChanges = () => NO_CONFIG_CHANGES,
  ) {
    this.#table = table;
    this.#takeover = takeover;
    this.configChanges = configChanges;
  }

  /** The mode has started, and serves node ports on localhost. */
  register(backends: readonly Backend[], localhost: Pick<NodePortProxy, 'listeners'>): void {
    this.#backends = backends;
    this.localhostListeners = () => localhost.listeners();
  }

  changes = () => this.#table.changes;
  localhostRejections = async () => {
    const counts = this.#backends.map(async (backend) =>
      [...((await backend.localhostRejections?.()) ?? [])].map(([protocol, count]) => ({
        family: backend.family,
        protocol,
        count,
      })),
    );
    return (await Promise.all(counts)).flat();
  };
  refusals = () => this.#table.refusals();
  servicesOnNodePorts = () => this.#table.onNodePorts;
  noLocal = () => this.#table.counts.noLocal();
  routes = () => this.#table.counts.routes();
  allPortsServices = () => this.#table.counts.allPortsServices();
  rules = () => this.#counts('rules').map(({ name: table, ...rest }) => ({ table, ...rest }));
  elements = () => this.#counts('elements').map(({ name: map, ...rest }) => ({ map, ...rest }));
  cleanupFailures = () => this.#of('cleanupFailures').map(([family, count]) => ({ family, count }));
  marks = () => this.#of('marks').map(([family, marks]) => ({ family, ...marks }));
  lingeringVips = () => this.#of('lingeringVips').map(([family, count]) => ({ family, count }));
  kept = () => this.#takeover.kept();

  /** One of the numbers, of the backends that have it. */
  #of<Name extends keyof BackendNumbers>(
    name: Name,
  ): [IpFamily, NonNullable<BackendNumbers[Name]>][] {
    return this.#backends.flatMap((backend) => {
      const number = backend.numbers?.()[name];
      return number === undefined ? [] : [[backend.family, number]];
    });
  }

  #counts(name: 'rules' | 'elements'): { family: IpFamily; name: string; count: number }[] {
    return this.#of(name).flatMap(([family, counts]) =>
      [...counts].map(([each, count]) => ({ family, name: each, count })),
    );
  }
}
