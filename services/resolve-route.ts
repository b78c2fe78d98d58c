/** Resolves a Service port to a Route: served ports, granted VIPs and selected endpoints. */
import { trimmedCopy } from '../api/collections.ts';
import type { EndpointSlice, Service } from '../api/objects.ts';
import { type OwnedPorts, sliceCount } from '../api/owned-ports.ts';
import type { PortRange } from '../api/ports.ts';
import { type ExplainedEndpoint, explainEndpoints, explainOwners } from '../endpoints/explain.ts';
import {
  type Candidate,
  candidatesForAllPorts,
  candidatesForPort,
  type Endpoint,
  type EndpointPolicy,
  type NodeTopology,
  selectEndpoints,
} from '../endpoints/select.ts';
import {
  type AddressHolders,
  type SliceOwner,
  type SliceOwners,
  sliceOwners,
} from '../endpoints/slice-owners.ts';
import { type Route, vipsOf } from './route.ts';
import type { Ownership, ServedPort } from './served-ports.ts';
import { grantKey, nodePortGrantKey } from './vip-conflicts.ts';
import { priorityOf } from './vip-requests.ts';

/** What a Route depends on besides its Service and EndpointSlices. */
export interface RouteContext {
  readonly node: NodeTopology;
  /** Decides which endpoints can own ports. */
  readonly pods: AddressHolders;
  /** The result of `VipConflicts.refusals`; only its keys are used. */
  readonly refused: ReadonlyMap<string, unknown>;
  /** See `VipConflicts.portsTakenFrom`. */
  readonly portsTakenFrom: (port: ServedPort, vip: string) => readonly PortRange[];
}

/** A Route, and the endpoints that own none of its ports although pods own them. */
export interface ResolvedRoute {
  readonly route: Route;
  readonly withoutSlice: SliceOwners['others'];
}

/**
 * Resolves one served port to a Route.
 * @returns undefined if every VIP and the node port are refused.
 */
export function resolveRoute(
  service: Service,
  port: ServedPort,
  slices: Iterable<EndpointSlice>,
  context: RouteContext,
): ResolvedRoute | undefined {
  const { refused, node } = context;
  const granted = (vip: string) => !refused.has(grantKey(port.id, vip));
  const clusterIP = granted(port.clusterIP) ? port.clusterIP : undefined;
  const externalIPs = port.externalIPs.filter((vip) => vip !== port.clusterIP && granted(vip));
  const known = new Set(externalIPs);
  const loadBalancerIPs = port.loadBalancerIPs.filter(
    (vip) => vip !== port.clusterIP && !known.has(vip) && granted(vip),
  );
  const nodePort = refused.has(nodePortGrantKey(port)) ? 0 : port.nodePort;
  const external = externalIPs.length > 0 || loadBalancerIPs.length > 0 || nodePort > 0;
  if (clusterIP === undefined && !external) return undefined;

  const internalLocal = service.internalTrafficPolicy === 'Local';
  const externalLocal = external && service.externalTrafficPolicy === 'Local';
  const { match } = port;
  const common = {
    id: port.id,
    serviceKey: service.key,
    name: port.name,
    family: port.family,
    match,
    clusterIP,
    externalIPs: trimmedCopy(externalIPs),
    loadBalancerIPs: trimmedCopy(loadBalancerIPs),
    nodePort,
    healthCheckNodePort: port.healthCheckNodePort,
    sourceRanges: port.sourceRanges,
  };
  if (port.ownership !== undefined) {
    const { ports } = port.ownership;
    const { owners, others } = ownersOf(service, port, ports, slices, node, context.pods);
    const route = {
      ...common,
      ...ownedFields(service, common, port, port.ownership, owners, context),
    };
    return { route, withoutSlice: others };
  }
  const policy = endpointPolicy(service, external);
  const endpoints = selectEndpoints(candidatesOf(port, slices), policy, node);
  const route: Route = {
    ...common,
    internalLocal,
    externalLocal,
    // A hash of the client replaces affinity.
    affinitySeconds: port.consistentHash === undefined ? service.affinitySeconds : 0,
    ...(port.consistentHash === undefined ? {} : { consistentHash: port.consistentHash }),
    clusterEndpoints: endpoints.cluster,
    localEndpoints: endpoints.local,
    hasEndpointsAnywhere: endpoints.anywhere,
    servingEndpoints: endpoints.serving,
    notServingEndpoints: endpoints.notServing,
  };
  return { route, withoutSlice: [] };
}

type OwnedFields = Required<
  Pick<
    Route,
    | 'internalLocal'
    | 'externalLocal'
    | 'affinitySeconds'
    | 'clusterEndpoints'
    | 'localEndpoints'
    | 'hasEndpointsAnywhere'
    | 'servingEndpoints'
    | 'notServingEndpoints'
    | 'owned'
  >
>;

function ownedFields(
  service: Service,
  vips: Pick<Route, 'clusterIP' | 'externalIPs' | 'loadBalancerIPs'>,
  port: ServedPort,
  { ports, vip }: Ownership,
  owners: readonly SliceOwner[],
  { portsTakenFrom }: RouteContext,
): OwnedFields {
  const granted = vipsOf(vips);
  const taken = granted
    .map((each) => [each, portsTakenFrom(port, each)] as const)
    .filter(([, ranges]) => ranges.length > 0);
  return {
    internalLocal: false,
    externalLocal: false,
    affinitySeconds: 0,
    localEndpoints: [],
    ...ownerEndpoints(owners),
    owned: {
      ...ports,
      owners,
      priority: priorityOf(port, service.key, service.creationTimestamp),
      udpVip: granted.includes(vip) ? vip : undefined,
      taken: new Map(taken),
    },
  };
}

/** The endpoints of a Route whose ports pods own. */
export function ownerEndpoints(owners: readonly SliceOwner[]) {
  const endpointsOf = (serves: boolean): Endpoint[] =>
    owners
      .filter((owner) => owner.serves === serves)
      .map(({ address, node: on }) => ({
        address,
        port: undefined,
        ...(on === 'other' && { isRemote: true as const }),
      }));
  const serving = endpointsOf(true);
  return {
    clusterEndpoints: serving,
    hasEndpointsAnywhere: serving.length > 0,
    servingEndpoints: serving,
    notServingEndpoints: endpointsOf(false),
  };
}

/** The owners of the slices of a served port with ownership, and the endpoints that own nothing. */
export function ownersOf(
  { namespace }: Pick<Service, 'namespace'>,
  { family }: ServedPort,
  { ranges, portsPerPod }: OwnedPorts,
  slices: Iterable<EndpointSlice>,
  { name }: NodeTopology,
  pods: AddressHolders,
): SliceOwners {
  const most = Math.max(...ranges.map((range) => sliceCount(range, portsPerPod)));
  const candidates = candidatesForAllPorts(slices, family);
  return sliceOwners(candidates, most, name, (address) => pods.holderOf(namespace, address));
}

/**
 * Says for each endpoint of a Route why this node uses it or not.
 * @param route a Route that `resolveRoute` made of the same objects.
 */
export function explainRoute(
  route: Route,
  service: Service,
  port: ServedPort,
  slices: readonly EndpointSlice[],
  { node, pods }: Pick<RouteContext, 'node' | 'pods'>,
): ExplainedEndpoint[] {
  if (port.ownership !== undefined) {
    const owners = ownersOf(service, port, port.ownership.ports, slices, node, pods);
    return explainOwners(candidatesOf(port, slices), owners, node);
  }
  const { externalIPs, loadBalancerIPs, nodePort } = route;
  const external = externalIPs.length > 0 || loadBalancerIPs.length > 0 || nodePort > 0;
  return explainEndpoints(candidatesOf(port, slices), endpointPolicy(service, external), node);
}

/** @param external whether the Route has external VIPs or a node port. */
function endpointPolicy(service: Service, external: boolean): EndpointPolicy {
  const internalLocal = service.internalTrafficPolicy === 'Local';
  const externalLocal = external && service.externalTrafficPolicy === 'Local';
  return {
    // With externalTrafficPolicy Local, pods and the node itself still reach all endpoints of the cluster through
    // external VIPs.
    usesCluster: !internalLocal || external,
    usesLocal: internalLocal || externalLocal,
  };
}

function candidatesOf(
  { match, family, portName }: ServedPort,
  slices: Iterable<EndpointSlice>,
): Candidate[] {
  return match.kind === 'port'
    ? candidatesForPort(slices, family, portName, match.protocol)
    : candidatesForAllPorts(slices, family);
}
