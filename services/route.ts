/** The Route: one Service port as this node serves it. */
import type { HashInput } from '../api/load-balancing.ts';
import type { IpFamily, ObjectKey, Protocol } from '../api/objects.ts';
import { sliceCount } from '../api/owned-ports.ts';
import { hasPort, type PortRange } from '../api/ports.ts';
import type { Endpoint } from '../endpoints/select.ts';
import type { SliceOwner } from '../endpoints/slice-owners.ts';

/** The ports that a Route serves on its VIPs. */
export type RouteMatch =
  | { readonly kind: 'port'; readonly protocol: Protocol; readonly port: number }
  | { readonly kind: 'ranges'; readonly ranges: readonly PortRange[] }
  | { readonly kind: 'all' };

/** Ports that belong to one pod each. */
export interface OwnedSlices {
  /** Ranges as the Service has them; slices count from the start of each. */
  readonly ranges: readonly PortRange[];
  readonly portsPerPod: number;
  readonly owners: readonly SliceOwner[];
  /** The VIP with the owned UDP ports, as which their owners speak; undefined if it is refused. */
  readonly udpVip: string | undefined;
  /** Sort key of the Service: creation time, then namespace/name. Of two Services that give a pod one port, the first speaks. */
  readonly priority: string;
  /** Ports of this Service on its VIPs that another Service lists one by one, and that are therefore not owned. */
  readonly taken: ReadonlyMap<string, readonly PortRange[]>;
}

/**
 * One Service port (or all ports, or all port ranges, of a Service) in one IP family, resolved for this node. Proxy
 * modes get no other information about served Services. Immutable; Routes with equal fields are equal.
 */
export interface Route {
  /** Unique: Service key, port name, protocol and family. */
  readonly id: string;
  readonly serviceKey: ObjectKey;
  /** Service key and port name as kube-proxy writes them: `ns/name` or `ns/name:port`. */
  readonly name: string;
  readonly family: IpFamily;
  readonly match: RouteMatch;

  /** The cluster IP; undefined if it is refused. */
  readonly clusterIP: string | undefined;
  readonly externalIPs: readonly string[];
  readonly loadBalancerIPs: readonly string[];
  /** 0 if there is none or it is refused. Always 0 for all ports and port ranges. */
  readonly nodePort: number;
  /** `spec.healthCheckNodePort`, which the agent answers (externalTrafficPolicy Local); 0 for none. */
  readonly healthCheckNodePort: number;

  /** Sources that may use the load balancer VIPs: CIDRs of this family; undefined for all sources. */
  readonly sourceRanges: readonly string[] | undefined;
  readonly internalLocal: boolean;
  readonly externalLocal: boolean;
  /** Session affinity timeout in seconds; 0 without session affinity. */
  readonly affinitySeconds: number;
  /** What selects the endpoint of a connection, on every node the same (`traffic/consistent-hash.ts`); absent: at random. */
  readonly consistentHash?: HashInput;

  /** Endpoints for traffic policy Cluster, topology hints applied. Sorted by address, then port. */
  readonly clusterEndpoints: readonly Endpoint[];
  /** Endpoints for traffic policy Local, in the same order. */
  readonly localEndpoints: readonly Endpoint[];
  /** Whether any endpoint in the cluster serves, even if traffic policy Local excludes the endpoint on this node. */
  readonly hasEndpointsAnywhere: boolean;
  /**
   * All endpoints that are ready or that serve while terminating, selected or not. UDP conntrack entries to
   * other addresses are stale.
   */
  readonly servingEndpoints: readonly Endpoint[];
  /** Endpoints that exist but do not serve. Their established connections may continue. */
  readonly notServingEndpoints: readonly Endpoint[];
  /**
   * Set if the ports are owned by pods; `match` has the ranges. The endpoints are then the owners that serve, whatever the
   * traffic policies say: no other pod may get a packet to an owned port.
   */
  readonly owned?: OwnedSlices;
}

/** The owner of a port, serving or not; undefined if the port belongs to no pod. */
export function ownerAt(
  { ranges, portsPerPod, owners }: Pick<OwnedSlices, 'ranges' | 'portsPerPod' | 'owners'>,
  protocol: Protocol,
  port: number,
): SliceOwner | undefined {
  const range = ranges.find((each) => hasPort(each, protocol, port));
  if (range === undefined) return undefined;
  const ordinal = Math.floor((port - range.from) / portsPerPod);
  if (ordinal >= sliceCount(range, portsPerPod)) return undefined;
  return owners.find((owner) => owner.ordinal === ordinal);
}

/** The number of slices over all ranges, and of slices with an owner that serves. */
export function sliceCounts({
  ranges,
  portsPerPod,
  owners,
}: Pick<OwnedSlices, 'ranges' | 'portsPerPod' | 'owners'>): { total: number; served: number } {
  const ordinals = owners.filter(({ serves }) => serves).map(({ ordinal }) => ordinal);
  let total = 0;
  let served = 0;
  for (const range of ranges) {
    const slices = sliceCount(range, portsPerPod);
    total += slices;
    served += countBelow(ordinals, slices);
  }
  return { total, served };
}

/** The number of values below a limit. @param sorted in ascending order; up to 65,535, with up to 1,024 ranges. */
function countBelow(sorted: readonly number[], limit: number): number {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((sorted[middle] ?? limit) < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** All VIPs of a Route. */
export function vipsOf({
  clusterIP,
  externalIPs,
  loadBalancerIPs,
}: Pick<Route, 'clusterIP' | 'externalIPs' | 'loadBalancerIPs'>): readonly string[] {
  return [...(clusterIP === undefined ? [] : [clusterIP]), ...externalIPs, ...loadBalancerIPs];
}
