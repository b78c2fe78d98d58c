/**
 * A process with the traffic part of the status API, on a Unix socket. It resolves Routes from manifests as the agent
 * does, but writes no rules.
 */
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { SERVING_KINDS } from '../../../api/objects.ts';
import { readObject } from '../../../api/read-object.ts';
import { RouteTable } from '../../../proxier/route-table.ts';
import { resource, statusHandler } from '../../../status/http/handler.ts';
import { trafficResources } from '../../../status/traffic/resources.ts';
import { createTraffic, type TrafficDependencies } from '../../../status/traffic/traffic.ts';
import { systemTimers } from '../../../sync/timers.ts';
import { UNLIMITED } from '../request.ts';

/** The first argument, as JSON. */
export interface TrafficProcessOptions {
  readonly socket: string;
  readonly modeTraffic: TrafficDependencies['modeTraffic'];
  /** A file with a JSON array of objects; read again by `GET /test/objects`. */
  readonly manifests: string;
  readonly nodeAddresses: readonly string[];
  readonly policyLogGroup?: number;
}

/** `GET /test/state` */
export interface TrafficProcessState {
  readonly isRunning: boolean;
  /** CPU time since the start, milliseconds. */
  readonly cpu: number;
  /** Memory in bytes. */
  readonly rss: number;
}

const options = JSON.parse(process.argv[2] ?? '{}') as TrafficProcessOptions;
const table = new RouteTable({ nodeName: 'node', allPortsEnabled: true, onChange: () => {} });
let known: { readonly kind: 'Service' | 'EndpointSlice'; readonly key: string }[] = [];

function readManifests(): void {
  const objects = (JSON.parse(readFileSync(options.manifests, 'utf8')) as unknown[])
    .map((raw) => readObject(raw, SERVING_KINDS))
    .filter((object) => object !== undefined);
  for (const { kind, key } of known) {
    if (!objects.some((each) => each.kind === kind && each.key === key)) table.remove(kind, key);
  }
  known = [];
  for (const object of objects) {
    table.upsert(object);
    const { kind, key } = object;
    if (kind === 'Service' || kind === 'EndpointSlice') known.push({ kind, key });
  }
  table.takeChanges();
}

readManifests();
const nodeAddresses = new Set(options.nodeAddresses);
const traffic = createTraffic({
  modeTraffic: options.modeTraffic,
  families: ['IPv4', 'IPv6'],
  routes: {
    routes: () => table.routes(),
    ofService: (service) => table.inspect(service)?.routes ?? [],
    watch: (listener) => table.watchRoutes(listener),
  },
  isNodePortAddress: (address) => nodeAddresses.has(address),
  nodeAddresses: () => options.nodeAddresses,
  policyLogGroup: options.policyLogGroup,
  policies: undefined,
  timers: systemTimers,
  onError: (error) => console.error(error),
});
const forTests = (handle: () => object) =>
  resource({ summary: '', response: undefined, parameters: {}, handle });
const handler = statusHandler({
  resources: {
    ...trafficResources(traffic, () => {}),
    '/test/objects': forTests(() => {
      readManifests();
      return {};
    }),
    '/test/state': forTests((): TrafficProcessState => {
      const { user, system } = process.cpuUsage();
      const { rss } = process.memoryUsage();
      return { isRunning: traffic.isRunning, cpu: (user + system) / 1000, rss };
    }),
  },
  bindHost: undefined,
  statusSocket: undefined,
  budget: UNLIMITED,
  onError: (error) => console.error(error),
});
createServer(handler).listen(options.socket, () => console.log('listening'));
