/** Endpoint selection: the endpoints of a Service port, by readiness, termination, topology and traffic policy. Pure. */
import { compareText } from '../api/collections.ts';
import type { EndpointSlice, IpFamily, Protocol, SliceEndpoint } from '../api/objects.ts';

/** An endpoint as the proxy modes use it. */
export interface Endpoint {
  readonly address: string;
  /** undefined for all ports and port ranges: the packet keeps its port. */
  readonly port: number | undefined;
  /** Set if the endpoint is known to be on another node. */
  readonly isRemote?: true;
}

/** The name and zone of this node, for topology hints and traffic policies. */
export interface NodeTopology {
  readonly name: string;
  readonly zone: string | undefined;
}

/** The endpoint sets that a Service port needs, see `selectEndpoints`. */
export interface EndpointPolicy {
  readonly usesCluster: boolean;
  readonly usesLocal: boolean;
}

/** An endpoint of a Service port before selection. */
export interface Candidate extends SliceEndpoint {
  readonly port: number | undefined;
}

/** The candidates for a listed port, matched by port name and protocol. */
export function candidatesForPort(
  slices: Iterable<EndpointSlice>,
  family: IpFamily,
  portName: string,
  protocol: Protocol,
): Candidate[] {
  const found = new Map<string, Candidate>();
  for (const slice of slices) {
    if (slice.family !== family) continue;
    for (const port of slice.ports) {
      // Like kube-proxy, ignore slice ports without a number.
      if (port.name !== portName || port.protocol !== protocol || port.port === undefined) continue;
      for (const endpoint of slice.endpoints) keepBest(found, endpoint, port.port);
    }
  }
  return sorted(found);
}

/** The candidates for all ports or port ranges: every address, whatever ports its slice has. */
export function candidatesForAllPorts(
  slices: Iterable<EndpointSlice>,
  family: IpFamily,
): Candidate[] {
  const found = new Map<string, Candidate>();
  for (const slice of slices) {
    if (slice.family !== family) continue;
    for (const endpoint of slice.endpoints) keepBest(found, endpoint, undefined);
  }
  return sorted(found);
}

/**
 * Counts the ready endpoints on this node for the health check node port, each address once. Terminating
 * endpoints do not count, although they may still serve, so that load balancers stop using this node in time
 * (kube-proxy's LocalReadyEndpoints, KEP-1669).
 */
export function countLocalReady(
  slices: Iterable<EndpointSlice>,
  family: IpFamily,
  isAllPorts: boolean,
  nodeName: string,
): number {
  // As in candidatesForPort, slice ports without a number do not count for listed ports.
  const usable = [...slices].filter(
    ({ ports }) => isAllPorts || ports.some(({ port }) => port !== undefined),
  );
  return candidatesForAllPorts(usable, family).filter(
    (endpoint) => endpoint.ready && endpoint.nodeName === nodeName,
  ).length;
}

/**
 * Keeps the best endpoint for each address and port. Several slices may contain one address while the controller moves
 * an endpoint, or while a new pod has the address of a terminating pod (kubernetes/kubernetes#135593). The endpoint
 * with the best readiness wins. Ties are broken by JSON text, so that the order of slices does not matter.
 */
function keepBest(
  found: Map<string, Candidate>,
  endpoint: SliceEndpoint,
  port: number | undefined,
): void {
  const key = `${endpoint.address} ${port}`;
  const known = found.get(key);
  if (known === undefined || betterThan(endpoint, known)) found.set(key, { ...endpoint, port });
}

function betterThan(a: SliceEndpoint, b: SliceEndpoint): boolean {
  const difference = readiness(a) - readiness(b);
  return difference !== 0 ? difference > 0 : JSON.stringify(a) < JSON.stringify(b);
}

/** 2: ready; 1: terminates while it serves; 0: gets no connections. */
export function readiness(
  endpoint: Pick<SliceEndpoint, 'ready' | 'serving' | 'terminating'>,
): number {
  if (endpoint.ready) return 2;
  return isDraining(endpoint) ? 1 : 0;
}

/** Whether the endpoint terminates but still serves. */
export function isDraining(endpoint: Pick<SliceEndpoint, 'serving' | 'terminating'>): boolean {
  return endpoint.serving && endpoint.terminating;
}

function sorted(found: ReadonlyMap<string, Candidate>): Candidate[] {
  return [...found.values()].sort(
    (a, b) => compareText(a.address, b.address) || (a.port ?? 0) - (b.port ?? 0),
  );
}

/**
 * Selects endpoints by kube-proxy's rules (pkg/proxy/topology.go): ready endpoints, or if none is ready, endpoints that
 * serve while terminating. This choice is made separately for the cluster set and the local set. Topology hints
 * restrict only the cluster set (`topologyFilter`).
 */
export function selectEndpoints(
  candidates: readonly Candidate[],
  policy: EndpointPolicy,
  node: NodeTopology,
) {
  const isLocal = (endpoint: Candidate) => endpoint.nodeName === node.name;
  // Share one object per endpoint among all lists, because there may be very many endpoints.
  const byCandidate = new Map(candidates.map((endpoint) => [endpoint, toEndpoint(endpoint, node)]));
  const endpointOf = (endpoint: Candidate) =>
    byCandidate.get(endpoint) ?? toEndpoint(endpoint, node);
  const ready = candidates.filter((endpoint) => endpoint.ready);
  const serve = (endpoints: readonly Candidate[]) => {
    const usable = endpoints.filter((endpoint) => endpoint.ready);
    return usable.length > 0 ? usable : endpoints.filter(isDraining);
  };

  const { allows } = topologyHints(ready, node);
  const hinted = ready.filter(allows);
  const cluster = hinted.length > 0 ? hinted : serve(candidates);
  const local = serve(candidates.filter(isLocal));
  const isServing = (endpoint: Candidate) => endpoint.ready || isDraining(endpoint);
  const serving = candidates.filter(isServing);
  const endpoints = cluster.map(endpointOf);
  return {
    /** For traffic policy Cluster, topology hints applied. */
    cluster: policy.usesCluster ? endpoints : [],
    /** For traffic policy Local. */
    local: policy.usesLocal ? local.map(endpointOf) : [],
    /** Whether any endpoint in the cluster serves, even if this node may not use it. */
    anywhere: serving.length > 0,
    /** All ready or draining endpoints; UDP conntrack entries to them are live. Usually the same array as `cluster`. */
    serving: serving.length === cluster.length ? endpoints : serving.map(endpointOf),
    /** All other endpoints. */
    notServing: candidates.filter((endpoint) => !isServing(endpoint)).map(endpointOf),
  };
}

function toEndpoint({ address, port, nodeName }: Candidate, node: NodeTopology): Endpoint {
  if (nodeName === undefined || nodeName === node.name) return { address, port };
  return { address, port, isRemote: true };
}

/** The topology hints that apply on this node. */
export interface TopologyHints {
  /** undefined: no hints apply, and all endpoints are allowed. */
  readonly by: 'node' | 'zone' | undefined;
  allows(endpoint: Candidate): boolean;
}

/**
 * The topology hints that apply on this node. Node hints apply if every ready endpoint has node hints and at least one
 * names this node. Otherwise zone hints apply if every ready endpoint has zone hints and at least one names this zone.
 * Like kube-proxy, this ignores `spec.trafficDistribution`: the EndpointSlice controller turns it into hints (KEP-4444).
 * @param ready the ready endpoints among the candidates.
 */
export function topologyHints(ready: readonly Candidate[], node: NodeTopology): TopologyHints {
  for (const [by, hints, here] of [
    ['node', nodeHints, node.name],
    ['zone', zoneHints, node.zone],
  ] as const) {
    if (here === undefined) continue;
    const allHinted = ready.every((endpoint) => hints(endpoint).length > 0);
    const allows = (endpoint: Candidate) => hints(endpoint).includes(here);
    if (allHinted && ready.some(allows)) return { by, allows };
  }
  return { by: undefined, allows: () => true };
}

function nodeHints({ hintedNodes = [] }: Candidate): readonly string[] {
  return hintedNodes;
}

function zoneHints({ hintedZones = [] }: Candidate): readonly string[] {
  return hintedZones;
}
