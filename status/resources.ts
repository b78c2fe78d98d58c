/** The resources of the status API, version 1, by path. */

import { readFile } from 'node:fs/promises';
import { canonicalAddress, socketAddress } from '../api/addresses.ts';
import { compareText } from '../api/collections.ts';
import { IP_FAMILIES, type IpFamily, type ObjectKey } from '../api/objects.ts';
import { isDnsLabel, isDnsSubdomain } from '../api/read-name.ts';
import type { InspectedService } from '../proxier/route-table.ts';
import { TimeSlice } from '../sync/time-slice.ts';
import type { Page } from './api/common.ts';
import type { PolicySummary } from './api/policies.ts';
import type { EndpointStatus, ServiceSummary } from './api/services.ts';
import type { TrafficRates } from './api/traffic.ts';
import { File, NotFound, type ResourceRequest, type Resources, resource } from './http/handler.ts';
import { PAGE_PARAMETERS, pageOf } from './http/paging.ts';
import { oneOf, parsed } from './http/parameters.ts';
import { compareWithKernel } from './kernel-comparison.ts';
import { serviceDetail } from './service-detail.ts';
import { type StatusSources, serviceKeyOf } from './sources.ts';
import { traceResources } from './trace/resources.ts';
import { trafficResources } from './traffic/resources.ts';
import type { TrafficLookup } from './traffic/traffic.ts';
import { nodeStatus } from './views/node-status.ts';
import { type PolicySources, policySummaries } from './views/policies.ts';
import { serviceEndpoints, serviceRoutes, serviceSummary } from './views/services.ts';

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
  return {
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
      parameters: {
        ...LIST,
        vip: ADDRESS,
        state: oneOf<ServiceSummary['state']>('served', 'noEndpoints', 'refused', 'ignored'),
        ports: oneOf<ServiceSummary['portKind']>('all', 'ranges', 'ports'),
        sort: oneOf<keyof typeof SORTS>('name', 'age', 'endpoints'),
        traffic: TRAFFIC,
      },
      handle: async (given) => {
        const summaries = await collect(sources, given, (inspected) => {
          const summary = serviceSummary(inspected, table.topology);
          const { state, portKind, vips } = summary;
          return (given.state ?? state) === state &&
            (given.ports ?? portKind) === portKind &&
            (given.vip === undefined || vips.includes(given.vip))
            ? [summary]
            : [];
        });
        const page = pageOf(summaries.sort(SORTS[given.sort ?? 'name']), given);
        if (given.traffic === undefined) return page;
        return withTraffic(page, sources, ratesOfService);
      },
    }),
    '/api/v1/services/{namespace}/{name}': resource({
      summary: 'One Service: objects, decisions, problems, and its objects in the kernel',
      response: 'ServiceDetail',
      parameters: {},
      handle: (_, request) => serviceDetail(sources, inspectedService(sources, request)),
    }),
    '/api/v1/endpoints': resource({
      summary: 'Endpoints, and why this node uses each or not',
      response: 'EndpointList',
      parameters: { ...LIST, address: ADDRESS, family: FAMILY, traffic: TRAFFIC },
      handle: async (given) => {
        const endpoints = await collect(sources, given, (inspected) =>
          serviceEndpoints(inspected, table.topology).filter(
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
    ...(policy === undefined ? {} : policyResources(policy)),
    '/api/v1/diff': resource({
      summary: 'Objects in the kernel that are not as they should be',
      response: 'KernelDiff',
      parameters: { ...PAGE_PARAMETERS, family: FAMILY },
      handle: async (given) => {
        const scope = { family: given.family, service: undefined };
        const { objects, ...rest } = await compareWithKernel(sources, scope);
        return { ...pageOf(objects, given), ...rest };
      },
    }),
    ...trafficResources(sources.traffic),
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

function policyResources(policy: PolicySources): Resources {
  return {
    '/api/v1/policies': resource({
      summary: 'Network policies in order of evaluation; only with --network-policy',
      response: 'PolicyList',
      parameters: {
        ...PAGE_PARAMETERS,
        namespace: NAMESPACE,
        state: oneOf<PolicySummary['state']>('ok', 'faulty'),
      },
      handle: (given) => {
        const isSelected = ({ namespace, state }: PolicySummary) =>
          (given.namespace ?? namespace) === namespace && (given.state ?? state) === state;
        return pageOf(policySummaries(policy).filter(isSelected), given);
      },
    }),
  };
}

const SORTS = {
  name: (a: ServiceSummary, b: ServiceSummary) =>
    compareText(a.namespace, b.namespace) || compareText(a.name, b.name),
  age: (a: ServiceSummary, b: ServiceSummary) => compareText(a.created ?? '', b.created ?? ''),
  endpoints: (a: ServiceSummary, b: ServiceSummary) => b.endpoints.ready - a.endpoints.ready,
} as const;

/** Walks the Services that the parameters select, in order of their keys, and gives the event loop its turns. */
async function collect<Item>(
  { table }: StatusSources,
  given: { readonly namespace: string | undefined; readonly service: string | undefined },
  itemsOf: (inspected: InspectedService) => readonly Item[],
): Promise<Item[]> {
  const { namespace, service } = given;
  const isSelected = (key: ObjectKey) =>
    (service === undefined || key === service) &&
    (namespace === undefined || key.startsWith(`${namespace}/`));
  const slice = new TimeSlice();
  const items: Item[] = [];
  for (const key of [...table.serviceKeys].filter(isSelected).sort(compareText)) {
    // The Service may be gone after a yield.
    const inspected = table.inspect(key);
    if (inspected !== undefined) items.push(...itemsOf(inspected));
    if (slice.isOver()) await slice.yield();
  }
  return items;
}

function inspectedService({ table }: StatusSources, { path }: ResourceRequest): InspectedService {
  const [namespace = '', name = ''] = path;
  const inspected = table.inspect(serviceKeyOf(namespace, name));
  if (inspected !== undefined) return inspected;
  throw new NotFound(`this agent knows no Service ${JSON.stringify(`${namespace}/${name}`)}`);
}
