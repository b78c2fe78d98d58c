/** The Route: one Service port as this node serves it. */
import type { IpFamily, ObjectKey, Protocol } from '../api/objects.ts';
import type { PortRange } from '../api/ports.ts';
import type { Endpoint } from '../endpoints/select.ts';

/** The ports that a Route serves on its VIPs. */
export type RouteMatch =
  | { readonly kind: 'port'; readonly protocol: Protocol; readonly port: number }
  | { readonly kind: 'ranges'; readonly ranges: readonly PortRange[] }
  | { readonly kind: 'all' };

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
}

/** All VIPs of a Route. */
export function vipsOf({ clusterIP, externalIPs, loadBalancerIPs }: Route): readonly string[] {
  return [...(clusterIP === undefined ? [] : [clusterIP]), ...externalIPs, ...loadBalancerIPs];
}
