/** endpoints/ chooses: from EndpointSlices to the endpoints that a Service has for each kind of client. Pure. */
import { compareText } from '../api/collections.ts';
import type {
  EndpointSlice,
  IpFamily,
  Protocol,
  SliceEndpoint,
  TrafficDistribution,
} from '../api/objects.ts';

export interface Endpoint {
  readonly address: string;
  /** undefined: the port of the packet is kept (all-ports). */
  readonly port: number | undefined;
  /** Known to be on another node. */
  readonly isRemote?: true;
}

/** Where this agent runs, for topology and traffic policies. */
export interface NodeTopology {
  readonly name: string;
  readonly zone: string | undefined;
}

/** Which endpoints a Service (port) uses: see `selectEndpoints`. */
export interface EndpointPolicy {
  readonly usesCluster: boolean;
  readonly usesLocal: boolean;
  readonly distribution: TrafficDistribution | undefined;
}

interface Candidate extends SliceEndpoint {
  readonly port: number | undefined;
}

/** Endpoints for a listed port: slices name theirs by port name and protocol. */
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
      // A port without a number is no port of a listed Service; kube-proxy ignores it too.
      if (port.name !== portName || port.protocol !== protocol || port.port === undefined) continue;
      for (const endpoint of slice.endpoints) keepBest(found, endpoint, port.port);
    }
  }
  return sorted(found);
}

/** Endpoints for all-ports: every address counts, whatever ports its slice names. */
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
 * How many endpoints on this node a load balancer may count on: ready ones, each address once,
 * whatever its ports. Those that drain do not count, though they may serve to the end: that is how
 * load balancers learn to go elsewhere in time (kube-proxy's LocalReadyEndpoints, KEP-1669).
 */
export function countLocalReady(
  slices: Iterable<EndpointSlice>,
  family: IpFamily,
  isAllPorts: boolean,
  nodeName: string,
): number {
  // As with traffic, a slice without a port number has no endpoints of a listed port.
  const usable = [...slices].filter(
    ({ ports }) => isAllPorts || ports.some(({ port }) => port !== undefined),
  );
  return candidatesForAllPorts(usable, family).filter(
    (endpoint) => endpoint.ready && endpoint.nodeName === nodeName,
  ).length;
}

/**
 * One address and port may stand in several slices while the controller moves it, or while a new
 * pod got the address of one that still terminates (kubernetes/kubernetes#135593): the one that
 * can serve wins; between equals the text decides, so that the order of slices does not matter.
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

function readiness(endpoint: SliceEndpoint): number {
  if (endpoint.ready) return 2;
  return isDraining(endpoint) ? 1 : 0;
}

function isDraining(endpoint: SliceEndpoint): boolean {
  return endpoint.serving && endpoint.terminating;
}

function sorted(found: ReadonlyMap<string, Candidate>): Candidate[] {
  return [...found.values()].sort(
    (a, b) => compareText(a.address, b.address) || (a.port ?? 0) - (b.port ?? 0),
  );
}

/**
 * Which endpoints serve, by kube-proxy's rules (pkg/proxy/topology.go): ready ones; where there is
 * none, those that serve while terminating, decided for the cluster and the local set apart.
 * Topology hints restrict the cluster set only, all or nothing.
 */
export function selectEndpoints(
  candidates: readonly Candidate[],
  policy: EndpointPolicy,
  node: NodeTopology,
) {
  const isLocal = (endpoint: Candidate) => endpoint.nodeName === node.name;
  // One value for all lists that an endpoint is in: there are very many of them.
  const plains = new Map(candidates.map((endpoint) => [endpoint, plainOf(endpoint, node)]));
  const plain = (endpoint: Candidate) => plains.get(endpoint) ?? plainOf(endpoint, node);
  const ready = candidates.filter((endpoint) => endpoint.ready);
  const serve = (endpoints: readonly Candidate[]) => {
    const usable = endpoints.filter((endpoint) => endpoint.ready);
    return usable.length > 0 ? usable : endpoints.filter(isDraining);
  };

  const near = ready.filter(topologyFilter(ready, policy.distribution, node));
  const cluster = near.length > 0 ? near : serve(candidates);
  const local = serve(candidates.filter(isLocal));
  const isAlive = (endpoint: Candidate) => endpoint.ready || isDraining(endpoint);
  const alive = candidates.filter(isAlive);
  const endpoints = cluster.map(plain);
  return {
    /** For traffic policy Cluster, topology applied. */
    cluster: policy.usesCluster ? endpoints : [],
    /** For traffic policy Local. */
    local: policy.usesLocal ? local.map(plain) : [],
    /** Some endpoint serves somewhere, though perhaps none that this node may use. */
    anywhere: alive.length > 0,
    /** All that are ready, serve or still drain: UDP flows to these are kept. Nearly always the same list as `cluster`. */
    alive: alive.length === cluster.length ? endpoints : alive.map(plain),
    /** All others. */
    unready: candidates.filter((endpoint) => !isAlive(endpoint)).map(plain),
  };
}

function plainOf({ address, port, nodeName }: Candidate, node: NodeTopology): Endpoint {
  if (nodeName === undefined || nodeName === node.name) return { address, port };
  return { address, port, isRemote: true };
}

/**
 * Node hints count only if every ready endpoint has some and one names this node; otherwise the
 * same holds for zone hints; otherwise there is no restriction.
 */
function topologyFilter(
  ready: readonly Candidate[],
  distribution: TrafficDistribution | undefined,
  node: NodeTopology,
): (endpoint: Candidate) => boolean {
  // Hints are written by the EndpointSlice controller, to all endpoints or to none. Where no
  // controller ran (manifests), they are what it would have written for the Service's
  // trafficDistribution (KEP-3015, KEP-4444).
  const stand = ready.some(hasHints) ? undefined : distribution;
  const byNode = (endpoint: Candidate) => nodeHints(endpoint, stand);
  const byZone = (endpoint: Candidate) => zoneHints(endpoint, stand);
  for (const [hints, here] of [
    [byNode, node.name],
    [byZone, node.zone],
  ] as const) {
    if (here === undefined) continue;
    const allHinted = ready.every((endpoint) => hints(endpoint).length > 0);
    const names = (endpoint: Candidate) => hints(endpoint).includes(here);
    if (allHinted && ready.some(names)) return names;
  }
  return () => true;
}

function nodeHints(
  endpoint: Candidate,
  distribution: TrafficDistribution | undefined,
): readonly string[] {
  const isStandIn = distribution === 'PreferSameNode' && endpoint.nodeName !== undefined;
  return endpoint.hintedNodes ?? (isStandIn ? [endpoint.nodeName] : []);
}

function zoneHints(
  endpoint: Candidate,
  distribution: TrafficDistribution | undefined,
): readonly string[] {
  const isStandIn = distribution !== undefined && endpoint.zone !== undefined;
  return endpoint.hintedZones ?? (isStandIn ? [endpoint.zone] : []);
}

function hasHints(endpoint: Candidate): boolean {
  return endpoint.hintedNodes !== undefined || endpoint.hintedZones !== undefined;
}
