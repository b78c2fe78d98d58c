/** Services, endpoints and Routes of the RouteTable as resources of the status API. Pure. */
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import {
  type Candidate,
  candidatesForAllPorts,
  isDraining,
  type NodeTopology,
} from '../../endpoints/select.ts';
import type { InspectedService, RouteTable } from '../../proxier/route-table.ts';
import { explainRoute } from '../../services/resolve-route.ts';
import { type Route, vipsOf } from '../../services/route.ts';
import type { ServedPort } from '../../services/served-ports.ts';
import {
  allowsOwnVips,
  type Dispatch,
  type EndpointPool,
  trafficPlan,
} from '../../traffic/plan.ts';
import type { Problem } from '../api/common.ts';
import type {
  EndpointCounts,
  EndpointStatus,
  PortKind,
  RouteStatus,
  ServiceState,
  ServiceSummary,
} from '../api/services.ts';
import { ownedPortTexts, ownedRouteRows, slicesText } from './owned-ports.ts';
import { endpointText, portsText } from './text.ts';

/** What decides about endpoints besides objects. */
export type NodeFacts = Pick<RouteTable, 'topology' | 'pods'>;

/** One row of `GET /api/v1/services`. */
export function serviceSummary(inspected: InspectedService, node: NodeTopology): ServiceSummary {
  const { service, routes } = inspected;
  const vips = [...new Set(routes.flatMap(vipsOf))];
  return {
    namespace: service.namespace,
    name: service.name,
    type: service.type,
    state: serviceState(inspected),
    vips,
    refusedVips: refusedVips(inspected, vips),
    portKind: portKind(inspected),
    ports: [...new Set(inspected.served.ports.flatMap(servedPortTexts))],
    ...endpointCounts(inspected, node),
    affinitySeconds: service.affinitySeconds,
    internalTrafficPolicy: service.internalTrafficPolicy,
    externalTrafficPolicy: service.externalTrafficPolicy,
    created: service.creationTimestamp === '' ? null : service.creationTimestamp,
  };
}

/** @param vips the ones that this node serves, at least on some ports. */
function refusedVips(
  { addresses, served, refusals }: InspectedService,
  vips: readonly string[],
): string[] {
  if (refusals.length === 0) return [];
  // A Service that is refused as a whole has no served ports.
  const all = served.ports.length > 0 ? served.ports.flatMap(vipsOf) : addresses;
  return [...new Set(all)].filter((vip) => !vips.includes(vip));
}

/** The first state that applies. `serviceCounts` counts by the same rules. */
function serviceState({ routes, refusals }: InspectedService): ServiceState {
  if (refusals.length > 0) return routes.length === 0 ? 'refused' : 'partlyRefused';
  if (routes.length === 0) return 'ignored';
  const filled = routes.filter(hasEndpoints).length;
  if (filled === 0) return 'noEndpoints';
  return filled === routes.length ? 'served' : 'partial';
}

export function hasEndpoints({ clusterEndpoints, localEndpoints }: Route): boolean {
  return clusterEndpoints.length + localEndpoints.length > 0;
}

const PORT_KINDS = { all: 'all', ranges: 'ranges', port: 'ports' } as const;

function portKind({ service, served }: InspectedService): PortKind {
  const [port] = served.ports;
  if (port !== undefined) return PORT_KINDS[port.match.kind];
  // Refused: what the Service asks for.
  if (service.allPorts === true || service.portsAnnotation?.trim() === 'all') return 'all';
  if (service.ownedPortsAnnotation !== undefined) return 'ranges';
  const { portsAnnotation = 'false' } = service;
  return portsAnnotation.trim() === 'false' ? 'ports' : 'ranges';
}

/** As kubectl writes ports: `80/TCP`, or `80:30080/TCP` with a node port. */
function servedPortTexts({ match, nodePort, ownership }: ServedPort): string[] {
  if (ownership !== undefined) return ownedPortTexts(ownership.ports);
  if (match.kind !== 'port' || nodePort === 0) return [portsText(match)];
  return [`${match.port}:${nodePort}/${match.protocol}`];
}

function endpointCounts(
  { slices }: InspectedService,
  node: NodeTopology,
): Pick<ServiceSummary, 'endpoints' | 'familyEndpoints'> {
  const [four = [], six = []] = IP_FAMILIES.map((family) => candidatesForAllPorts(slices, family));
  const isDual = four.length > 0 && six.length > 0;
  return {
    endpoints: countsOf([...four, ...six], node),
    familyEndpoints: isDual ? { IPv4: countsOf(four, node), IPv6: countsOf(six, node) } : null,
  };
}

function countsOf(all: readonly Candidate[], node: NodeTopology): EndpointCounts {
  const count = (is: (endpoint: Candidate) => boolean) => all.filter(is).length;
  return {
    ready: count(({ ready }) => ready),
    terminating: count((endpoint) => !endpoint.ready && isDraining(endpoint)),
    notReady: count((endpoint) => !endpoint.ready && !isDraining(endpoint)),
    local: count(
      (endpoint) => endpoint.nodeName === node.name && (endpoint.ready || isDraining(endpoint)),
    ),
  };
}

/** The endpoints of a Service, with the decision about each. Empty if the Service has no Routes. */
export function serviceEndpoints(inspected: InspectedService, node: NodeFacts): EndpointStatus[] {
  return routesWithPorts(inspected).flatMap(({ route, port }) =>
    endpointsOf(inspected, route, port, node),
  );
}

/** The endpoints of one Route of a Service, with the decision about each. */
export function routeEndpoints(
  inspected: InspectedService,
  route: Route,
  node: NodeFacts,
): EndpointStatus[] {
  const port = inspected.served.ports.find(({ id }) => id === route.id);
  return port === undefined ? [] : endpointsOf(inspected, route, port, node);
}

function endpointsOf(
  { service, slices }: InspectedService,
  route: Route,
  port: ServedPort,
  { topology: node, pods }: NodeFacts,
): EndpointStatus[] {
  const ordinals = new Map(route.owned?.owners.map(({ address, ordinal }) => [address, ordinal]));
  const ownedPortsOf = (address: string) => {
    const ordinal = ordinals.get(address);
    if (route.owned === undefined || ordinal === undefined) return null;
    return slicesText(route.owned, ordinal);
  };
  return explainRoute(route, service, port, slices, { node, pods }).map(
    ({ endpoint, isLocal, cluster, local }) => ({
      service: service.key,
      portName: port.portName,
      family: route.family,
      address: endpoint.address,
      port: endpoint.port ?? null,
      protocol: port.match.kind === 'port' ? port.match.protocol : null,
      ready: endpoint.ready,
      serving: endpoint.serving,
      terminating: endpoint.terminating,
      node: endpoint.nodeName ?? null,
      zone: endpoint.zone ?? null,
      local: isLocal,
      zoneHints: endpoint.hintedZones ?? [],
      nodeHints: endpoint.hintedNodes ?? [],
      ownedPorts: ownedPortsOf(endpoint.address),
      cluster,
      localPolicy: local,
    }),
  );
}

/**
 * The VIPs and node ports of a Service.
 * @param nodeAddresses all addresses of this node, which decide whether a load balancer VIP is an allowed source.
 */
export function serviceRoutes(
  inspected: InspectedService,
  nodeAddresses: readonly string[],
): RouteStatus[] {
  return routesWithPorts(inspected).flatMap(({ route, port }) => {
    const { serviceKey, family, affinitySeconds, consistentHash = null } = route;
    const { vips, nodePort } = trafficPlan(route, allowsOwnVips(route, nodeAddresses));
    const { portName } = port;
    const common = {
      service: serviceKey,
      portName,
      family,
      affinitySeconds,
      consistentHash,
      portsPerPod: null,
    };
    const ofVips = vips.flatMap((plan): RouteStatus[] => {
      const { vip, kind, dispatch, sources } = plan;
      const ofVip: RouteStatus = {
        ...common,
        kind,
        vip,
        ports: portsText(route.match),
        ...dispatchStatus(dispatch),
        sourceRanges: sources === undefined ? null : [...sources.ranges, ...sources.ownVips],
      };
      if (route.owned === undefined) return [ofVip];
      return ownedRouteRows(route, route.owned, plan).map((row) => ({
        ...ofVip,
        ...row,
        otherwise: 'reject',
      }));
    });
    if (nodePort === undefined) return ofVips;
    const ofNodePort: RouteStatus = {
      ...common,
      kind: 'node port',
      vip: null,
      ports: `${nodePort.port}/${nodePort.protocol}`,
      ...dispatchStatus(nodePort.dispatch),
      sourceRanges: null,
    };
    return [...ofVips, ofNodePort];
  });
}

function dispatchStatus({ podsAndNode, others, masquerade, untranslatedVerdict }: Dispatch) {
  const endpoints = (pool: EndpointPool) => pool.endpoints.map(endpointText);
  // Pods and the node get the endpoints of the others while their own pool is empty.
  const differs = podsAndNode !== undefined && podsAndNode.endpoints.length > 0;
  return {
    endpoints: endpoints(others),
    podAndNodeEndpoints: differs ? endpoints(podsAndNode) : null,
    masquerade,
    otherwise: untranslatedVerdict ?? null,
  };
}

function routesWithPorts({ routes, served }: InspectedService) {
  return routes.flatMap((route) => {
    const port = served.ports.find(({ id }) => id === route.id);
    return port === undefined ? [] : [{ route, port }];
  });
}

/** Why clients of a Service may fail, as far as the objects tell: refusals, warnings, no endpoint. */
export function serviceProblems(inspected: InspectedService, node: NodeFacts): Problem[] {
  const { service, refusals, warnings } = inspected;
  const object = `Service ${service.key}`;
  const problem = (reason: string, message: string, family: IpFamily | null = null): Problem => ({
    reason,
    message,
    object,
    family,
  });
  return [
    ...refusals.map(({ reason, field, message }) =>
      problem(`Refused${reason}`, `${field}: ${message}`),
    ),
    ...warnings.map(({ message }) => problem('ServedWithWarning', message)),
    ...ignoredReason(inspected).map((message) => problem('Ignored', message)),
    ...inspected.routes.flatMap((route) =>
      routeProblems(inspected, route, node).map(({ message }) =>
        problem('NoEndpoints', message, route.family),
      ),
    ),
  ];
}

/** Why clients of one Route may fail. */
export interface RouteProblem {
  readonly message: string;
  /** `inside`: clients of the cluster IP; `outside`: clients outside the cluster. */
  readonly clients: 'all' | 'inside' | 'outside';
}

/** Why clients of one Route of a Service may fail. */
export function routeProblems(
  inspected: InspectedService,
  route: Route,
  { topology: node, pods }: NodeFacts,
): RouteProblem[] {
  const { service, slices, served } = inspected;
  const port = served.ports.find(({ id }) => id === route.id);
  if (port === undefined) return [];
  const explained = explainRoute(route, service, port, slices, { node, pods });
  const name = port.portName === '' ? '' : `port ${port.portName}: `;
  return endpointProblems(route, explained).map(({ message, clients }) => ({
    message: name + message,
    clients,
  }));
}

function ignoredReason({ service }: InspectedService): string[] {
  if (service.otherProxy) {
    return ['label service.kubernetes.io/service-proxy-name: another proxy serves this Service'];
  }
  if (service.headlessLabel)
    return ['label service.kubernetes.io/headless: not for a service proxy'];
  if (service.headless) return ['spec.clusterIP: None: clients connect to endpoints directly'];
  if (service.type === 'ExternalName') return ['type ExternalName: DNS only'];
  if (service.clusterIPs.length === 0) return ['spec.clusterIPs: no cluster IP'];
  return [];
}

function endpointProblems(
  route: Route,
  explained: ReturnType<typeof explainRoute>,
): RouteProblem[] {
  const isInternalEmpty = !explained.some(({ local, cluster }) =>
    route.internalLocal ? local.used : cluster.used,
  );
  const isExternalEmpty = route.externalLocal && !explained.some(({ local }) => local.used);
  if (!isInternalEmpty && !isExternalEmpty) return [];
  const message = noEndpointMessage(route, explained);
  if (message !== undefined) return [{ message, clients: 'all' }];
  const none = (policy: string, clients: string) =>
    `spec.${policy}: Local, and no endpoint is on this node; packets from ${clients} are dropped`;
  return [
    ...(isInternalEmpty
      ? [
          {
            message: none('internalTrafficPolicy', 'pods and this node'),
            clients: 'inside',
          } as const,
        ]
      : []),
    ...(isExternalEmpty
      ? [{ message: none('externalTrafficPolicy', 'outside'), clients: 'outside' } as const]
      : []),
  ];
}

/** @returns undefined if only a traffic policy excludes the endpoints. */
function noEndpointMessage(
  route: Route,
  explained: ReturnType<typeof explainRoute>,
): string | undefined {
  if (route.owned !== undefined && explained.length > 0) {
    const owners = route.owned.owners.length;
    const why = owners === 0 ? 'no endpoint owns ports' : `no owner serves (${owners} do not)`;
    return `${why}; packets to ${portsText(route.match)} are rejected`;
  }
  if (explained.length === 0) {
    return 'no endpoint: no EndpointSlice of the Service has an address for this port';
  }
  if (!route.hasEndpointsAnywhere) {
    return `no endpoint is ready (0 of ${explained.length}); packets are rejected`;
  }
  return undefined;
}
