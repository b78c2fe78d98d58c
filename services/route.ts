/** The Route: one Service port as it is to be served by this node. */
import type { IpFamily, ObjectKey, Protocol } from '../api/objects.ts';
import type { PortRange } from '../api/ports.ts';
import type { Endpoint } from '../endpoints/select.ts';

/** What a Route answers to on its VIPs. */
export type RouteMatch =
  | { readonly kind: 'port'; readonly protocol: Protocol; readonly port: number }
  | { readonly kind: 'ranges'; readonly ranges: readonly PortRange[] }
  | { readonly kind: 'all' };

/**
 * One Service (port) in one IP family, fully resolved for this node; all that a backend knows.
 * Immutable; two Routes are the same when their fields are.
 */
export interface Route {
  /** Unique: Service key, port name, protocol and family. */
  readonly id: string;
  readonly serviceKey: ObjectKey;
  /** Service key and port name as kube-proxy writes them: `ns/name` or `ns/name:port`. */
  readonly name: string;
  readonly family: IpFamily;
  readonly match: RouteMatch;

  /** VIP for clients inside the cluster; undefined when it was refused. */
  readonly clusterIP: string | undefined;
  readonly externalIPs: readonly string[];
  readonly loadBalancerIPs: readonly string[];
  /** 0 for none; never set on an all-ports Route. */
  readonly nodePort: number;
  /** TCP port of the load balancer VIPs that stays with the node (externalTrafficPolicy Local); 0 for none. */
  readonly healthCheckNodePort: number;

  /** Who may use the load balancer VIPs: CIDRs of this family; undefined for everybody. */
  readonly sourceRanges: readonly string[] | undefined;
  readonly internalLocal: boolean;
  readonly externalLocal: boolean;
  /** Seconds; 0 for no session affinity. */
  readonly affinitySeconds: number;

  /** Endpoints for traffic policy Cluster, topology applied. Sorted by address, then port. */
  readonly clusterEndpoints: readonly Endpoint[];
  /** Endpoints for traffic policy Local. Sorted alike. */
  readonly localEndpoints: readonly Endpoint[];
  /** Some endpoint exists somewhere, if not one that this node may use for every policy. */
  readonly hasEndpointsAnywhere: boolean;
  /**
   * Endpoints that serve or still drain, chosen now or not: UDP flows to them are kept,
   * flows to anything else are stale.
   */
  readonly servingEndpoints: readonly Endpoint[];
  /** Endpoints that are there and do not serve: connections to them may live on. */
  readonly notServingEndpoints: readonly Endpoint[];
}

/** All VIPs of a Route. */
export function vipsOf({ clusterIP, externalIPs, loadBalancerIPs }: Route): readonly string[] {
  return [...(clusterIP === undefined ? [] : [clusterIP]), ...externalIPs, ...loadBalancerIPs];
}
