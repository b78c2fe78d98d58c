/** The resources of the status API, version 1, by path. */

import { readFile } from 'node:fs/promises';
import { canonicalAddress, socketAddress } from '../api/addresses.ts';
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import { isDnsLabel, isDnsSubdomain } from '../api/read-name.ts';
import type { InspectedService } from '../proxier/route-table.ts';
import type { Page } from './api/common.ts';
import type { EndpointStatus, ServiceSummary } from './api/services.ts';
import type { TrafficRates } from './api/traffic.ts';
import { File } from './http/file.ts';
import { NotFound, type Resources, resource } from './http/handler.ts';
import { PAGE_PARAMETERS, pageOf } from './http/paging.ts';
import { oneOf, parsed } from './http/parameters.ts';
import { KernelComparisons, kernelDiff } from './kernel-comparison.ts';
import { policyResources } from './policy-resources.ts';
import { serviceDetail } from './service-detail.ts';
import { collect, listServices, SERVICE_LIST_PARAMETERS } from './service-list.ts';
import { type StatusSources, serviceKeyOf } from './sources.ts';
import { SummaryCache } from './summary-cache.ts';
import { traceResources } from './trace/resources.ts';
import { trafficResources } from './traffic/resources.ts';
import type { TrafficLookup } from './traffic/traffic.ts';
import { changeView } from './views/activity.ts';
import { nodeStatus } from './views/node-status.ts';
import { serviceEndpoints, serviceRoutes } from './views/services.ts';

const NAMESPACE = parsed('a namespace', (text) => (isDnsLabel(text) ? text : undefined));
const ADDRESS = parsed('an IP address', canonicalAddress);
const SERVICE = parsed('namespace/name of a Service', (text) => {
  const [namespace = '', name = '', ...rest] = text.split('/');
  return rest.length === 0 && isDnsLabel(namespace) && isDnsSubdomain(name) ? text : undefined;
});
const FAMILY = oneOf<IpFamily>(...IP_FAMILIES);
/** Without this parameter nothing reads conntrack. */
const TRAFFIC = oneOf('true');
const LIST = { ...PAGE_PARAMETERS, namespace: NAMESPACE, service: SERVICE };

/** @param now milliseconds since 1970. */
export function statusResources(sources: StatusSources, now: () => number = Date.now): Resources {
  const { table, policy } = sources;
  const summaries = new SummaryCache();
  const comparisons = new KernelComparisons(sources);
  // Rates change without a change of the table.
  const version = (query: URLSearchParams) =>
    query.has('traffic') ? undefined : `${sources.startedAt}-${table.revision}`;
  const resources: Resources = {
    ...traceResources(sources, now),
    '/api/v1/status': resource({
      summary: 'State of the agent and of its node',
      response: 'NodeStatus',
      parameters: {},
      handle: () => nodeStatus(sources, now()),
    }),
    '/api/v1/services': resource({
      summary: 'Services',
      response: 'ServiceList',
      parameters: { ...LIST, vip: ADDRESS, ...SERVICE_LIST_PARAMETERS, traffic: TRAFFIC },
      version,
      handle: async (given) => {
        const page = await listServices(sources, given, summaries);
        return given.traffic === undefined ? page : withTraffic(page, sources, ratesOfService);
      },
    }),
    '/api/v1/services/{namespace}/{name}': resource({
      summary: 'One Service: objects, decisions, problems, and its objects in the kernel',
      response: 'ServiceDetail',
      parameters: {},
      handle: (_, request) =>
        serviceDetail(sources, inspectedService(sources, request.path), comparisons, request),
    }),
    '/api/v1/endpoints': resource({
      summary: 'Endpoints, and why this node uses each or not',
      response: 'EndpointList',
      parameters: { ...LIST, address: ADDRESS, family: FAMILY, traffic: TRAFFIC },
      version,
      handle: async (given) => {
        const endpoints = await collect(sources, given, (inspected) =>
          serviceEndpoints(inspected, table).filter(
            ({ address, family }) =>
              (given.address ?? address) === address && (given.family ?? family) === family,
          ),
        );
        const page = pageOf(endpoints, given);
        if (given.traffic === undefined) return page;
        return withTraffic(page, sources, ratesOfEndpoint);
      },
    }),
    '/api/v1/routes': resource({
      summary: 'VIPs and node ports, and where packets to them go',
      response: 'RouteList',
      parameters: { ...LIST, vip: ADDRESS, family: FAMILY },
      handle: async (given) => {
        const addresses = sources.nodeAddresses();
        const routes = await collect(sources, given, (inspected) =>
          serviceRoutes(inspected, addresses).filter(
            ({ vip, family }) =>
              (given.vip === undefined || given.vip === vip) && (given.family ?? family) === family,
          ),
        );
        return pageOf(routes, given);
      },
    }),
    ...(policy === undefined ? {} : policyResources(policy, sources)),
    '/api/v1/diff': resource({
      summary: 'Objects in the kernel that are not as they should be',
      response: 'KernelDiff',
      parameters: { limit: PAGE_PARAMETERS.limit, family: FAMILY, namespace: NAMESPACE },
      handle: async ({ family, namespace, limit }, request) => {
        const scope = { family, namespace, service: undefined };
        return kernelDiff(await comparisons.compare(scope, request), limit);
      },
    }),
    '/api/v1/changes': resource({
      summary: 'The latest changes of the kernel, the newest first',
      response: 'ChangeList',
      parameters: { ...PAGE_PARAMETERS, family: FAMILY, service: SERVICE },
      handle: (given) => {
        const changes = sources.syncs.changes.filter(
          ({ family, services }) =>
            (given.family ?? family) === family &&
            (given.service === undefined || services.includes(given.service)),
        );
        return pageOf(changes.map(changeView).reverse(), given);
      },
    }),
    '/api/v1/checks': resource({
      summary:
        'What `portwide check` finds with the flags of the agent; takes seconds, kept for 30 s',
      response: 'NodeChecks',
      parameters: {},
      handle: (_, { waitOutside }) => waitOutside(sources.nodeChecks),
    }),
    '/api/v1/series': resource({
      summary: 'Time series of the last 15 minutes',
      response: 'SeriesList',
      parameters: {},
      handle: () => sources.series.list(),
    }),
    '/api/v1': resource({
      summary: 'The paths of all resources of this agent',
      response: 'ResourceList',
      parameters: {},
      handle: () => ({ paths: Object.keys(resources) }),
    }),
    ...trafficResources(sources.traffic, (service) => {
      inspectedService(sources, service.split('/'));
    }),
    '/api/v1/openapi.json': resource({
      summary: 'This description',
      response: undefined,
      parameters: {},
      handle: async () => {
        const content = await readFile(new URL('openapi.json', import.meta.url));
        return new File({ type: 'application/json', content });
      },
    }),
  };
  return resources;
}

type RatesOf<Row> = (row: Row, lookup: TrafficLookup) => TrafficRates;

const ratesOfService: RatesOf<ServiceSummary> = ({ namespace, name }, lookup) =>
  lookup.service(serviceKeyOf(namespace, name));

const ratesOfEndpoint: RatesOf<EndpointStatus> = ({ service, address, port }, lookup) =>
  lookup.endpoint(service, socketAddress(address, port ?? undefined));

/** Fills `traffic` of the rows of one page. @throws NetlinkError if conntrack cannot be read. */
async function withTraffic<Row extends object>(
  page: Page<Row>,
  { traffic }: StatusSources,
  ratesOf: RatesOf<Row>,
): Promise<Page<Row>> {
  const lookup = await traffic.lookup();
  return { ...page, items: page.items.map((row) => ({ ...row, traffic: ratesOf(row, lookup) })) };
}

/** @throws NotFound */
function inspectedService(
  { table, sourceFaults }: StatusSources,
  [namespace = '', name = '']: readonly string[],
): InspectedService {
  const inspected = table.inspect(serviceKeyOf(namespace, name));
  if (inspected !== undefined) return inspected;
  const unknown = `this agent knows no Service ${JSON.stringify(`${namespace}/${name}`)}`;
  for (const { object, message } of sourceFaults()) {
    if (object === `Service ${namespace}/${name}`) {
      throw new NotFound(`${unknown}: it cannot be read: ${message}`);
    }
  }
  throw new NotFound(unknown);
}
