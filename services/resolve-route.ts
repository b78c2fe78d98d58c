/** Resolves a Service port to a Route: served ports, granted VIPs and selected endpoints. */
import { trimmedCopy } from '../api/collections.ts';
import type { EndpointSlice, Service } from '../api/objects.ts';
import { type ExplainedEndpoint, explainEndpoints } from '../endpoints/explain.ts';
import {
  type Candidate,
  candidatesForAllPorts,
  candidatesForPort,
  type EndpointPolicy,
  type NodeTopology,
  selectEndpoints,
} from '../endpoints/select.ts';
import type { Route } from './route.ts';
import type { ServedPort } from './served-ports.ts';
import { grantKey, nodePortGrantKey } from './vip-conflicts.ts';

/**
 * Resolves one served port to a Route.
 * @param refused the result of `VipConflicts.refusals`; only its keys are used.
 * @returns undefined if every VIP and the node port are refused.
 */
export function resolveRoute(
  service: Service,
  port: ServedPort,
  refused: ReadonlyMap<string, unknown>,
  slices: Iterable<EndpointSlice>,
  node: NodeTopology,
): Route | undefined {
  const granted = (vip: string) => !refused.has(grantKey(port.id, vip));
  const clusterIP = granted(port.clusterIP) ? port.clusterIP : undefined;
  const externalIPs = port.externalIPs.filter((vip) => vip !== port.clusterIP && granted(vip));
  const loadBalancerIPs = port.loadBalancerIPs.filter(
    (vip) => vip !== port.clusterIP && !externalIPs.includes(vip) && granted(vip),
  );
  const nodePort = refused.has(nodePortGrantKey(port)) ? 0 : port.nodePort;
  const external = externalIPs.length > 0 || loadBalancerIPs.length > 0 || nodePort > 0;
  if (clusterIP === undefined && !external) return undefined;

  const internalLocal = service.internalTrafficPolicy === 'Local';
  const externalLocal = external && service.externalTrafficPolicy === 'Local';
  const { match } = port;
  const policy = endpointPolicy(service, external);
  const endpoints = selectEndpoints(candidatesOf(port, slices), policy, node);
  return {
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
    internalLocal,
    externalLocal,
    affinitySeconds: service.affinitySeconds,
    clusterEndpoints: endpoints.cluster,
    localEndpoints: endpoints.local,
    hasEndpointsAnywhere: endpoints.anywhere,
    servingEndpoints: endpoints.serving,
    notServingEndpoints: endpoints.notServing,
  };
}

/**
 * Says for each endpoint of a Route why this node uses it or not.
 * @param route a Route that `resolveRoute` made of the same objects.
 */
export function explainRoute(
  route: Route,
  service: Service,
  port: ServedPort,
  slices: Iterable<EndpointSlice>,
  node: NodeTopology,
): ExplainedEndpoint[] {
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
    distribution: service.trafficDistribution,
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
