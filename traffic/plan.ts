/**
 * One Route to its TrafficPlan: what becomes of packets to its VIPs and its node port. This folder decides that once, for
 * all backends, which only render it.
 */
import { cidrContains } from '../api/addresses.ts';
import type { Protocol } from '../api/objects.ts';
import type { Endpoint } from '../endpoints/select.ts';
import type { Route } from '../services/route.ts';

/** The endpoints for traffic policy Cluster, topology applied, or those for Local. */
export type EndpointSet = 'cluster' | 'local';

export interface EndpointPool {
  readonly set: EndpointSet;
  /** Those of the set. Where there is none, this serves nobody. */
  readonly endpoints: readonly Endpoint[];
}

/** Rejected by ICMP, or dropped; see `TrafficOptions.resetsTcp` for connections that were established. */
export type UntranslatedVerdict = 'reject' | 'drop';

/** What a VIP or node port does with packets of sources that are let in. */
export interface Dispatch {
  /**
   * Serves pods, as far as the local detector tells them, and the node itself where the external traffic policy is
   * Local: it does not bind them, for they do not come from outside. Where it serves nobody, they are served as all
   * others are. undefined: nobody is served apart.
   */
  readonly podsAndNode: EndpointPool | undefined;
  readonly others: EndpointPool;
  /**
   * Whose source address becomes the node's, so that replies come back through it. `foreign`: clients that are no pods,
   * see `foreignClients`. `node`: the node's own traffic alone, as its source may be the VIP; with the policy Local
   * clients outside keep their address, as do pods. Hairpins come on top, see `needsHairpin`.
   */
  readonly masquerade: 'everybody' | 'foreign' | 'node';
  /**
   * Of packets that nobody translated: without an endpoint they are rejected, as by kube-proxy, or dropped where only this
   * node has none. A VIP that serves all ports or ranges rejects them though it has endpoints, for what escaped translation
   * must reach no listener of the host. undefined: they are none of the Service's.
   */
  readonly untranslatedVerdict: UntranslatedVerdict | undefined;
}

/** Who may use a VIP; packets of all others are dropped. */
interface AllowedSources {
  /** CIDRs (`loadBalancerSourceRanges`). */
  readonly ranges: readonly string[];
  /** Addresses: load balancer VIPs of the Route itself, see `allowsOwnVips`. */
  readonly ownVips: readonly string[];
}

export interface VipPlan {
  readonly vip: string;
  /** In the words of kube-proxy's rules. */
  readonly kind: 'cluster IP' | 'external IP' | 'loadbalancer IP';
  readonly dispatch: Dispatch;
  /** undefined: everybody may use it. */
  readonly sources: AllowedSources | undefined;
  /**
   * TCP port that stays with the node although the match has it, since load balancers that pass packets through probe the
   * VIP itself; 0 for none.
   */
  readonly healthCheckPort: number;
}

export interface NodePortPlan {
  readonly protocol: Protocol;
  readonly port: number;
  readonly dispatch: Dispatch;
}

/** What a backend renders of a Route. */
export interface TrafficPlan
  extends Pick<
    Route,
    'serviceKey' | 'name' | 'family' | 'match' | 'affinitySeconds' | 'healthCheckNodePort'
  > {
  readonly endpoints: Readonly<Record<EndpointSet, readonly Endpoint[]>>;
  /** The cluster IP first. */
  readonly vips: readonly VipPlan[];
  readonly nodePort: NodePortPlan | undefined;
  /** Treatment of node port, external and load balancer IPs; undefined: there are none. */
  readonly external: Dispatch | undefined;
}

/** @param ownVips whether they are let in, see `allowsOwnVips`. */
export function trafficPlan(route: Route, ownVips: boolean): TrafficPlan {
  const { serviceKey, name, family, match, affinitySeconds, healthCheckNodePort } = route;
  const { clusterIP, externalIPs, loadBalancerIPs, nodePort, sourceRanges } = route;
  const endpoints = { cluster: route.clusterEndpoints, local: route.localEndpoints };
  const serving = (set: EndpointSet): EndpointPool => ({ set, endpoints: endpoints[set] });
  const dispatch = (
    podsAndNode: EndpointPool | undefined,
    others: EndpointPool,
    masquerade: Dispatch['masquerade'],
  ): Dispatch => {
    const served = match.kind === 'port' ? undefined : 'reject';
    const unserved = route.hasEndpointsAnywhere ? 'drop' : 'reject';
    const untranslatedVerdict = others.endpoints.length > 0 ? served : unserved;
    return {
      podsAndNode: podsAndNode,
      others,
      masquerade,
      untranslatedVerdict: untranslatedVerdict,
    };
  };
  const internal = dispatch(
    undefined,
    serving(route.internalLocal ? 'local' : 'cluster'),
    'foreign',
  );
  const external = route.externalLocal
    ? dispatch(serving('cluster'), serving('local'), 'node')
    : dispatch(undefined, serving('cluster'), 'everybody');

  const unrestricted = { sources: undefined, healthCheckPort: 0 };
  const vips: VipPlan[] = [];
  if (clusterIP !== undefined) {
    vips.push({ vip: clusterIP, kind: 'cluster IP', dispatch: internal, ...unrestricted });
  }
  for (const vip of externalIPs) {
    vips.push({ vip, kind: 'external IP', dispatch: external, ...unrestricted });
  }
  // Source ranges bind those whom some endpoint would serve; without one all are rejected alike.
  const isReachable = endpoints.cluster.length + endpoints.local.length > 0;
  const sources =
    sourceRanges !== undefined && isReachable
      ? { ranges: sourceRanges, ownVips: ownVips ? loadBalancerIPs : [] }
      : undefined;
  const healthCheckPort = match.kind === 'port' ? 0 : healthCheckNodePort;
  for (const vip of loadBalancerIPs) {
    vips.push({
      vip,
      kind: 'loadbalancer IP',
      dispatch: external,
      sources,
      healthCheckPort: healthCheckPort,
    });
  }
  const hasNodePort = nodePort > 0 && match.kind === 'port';
  return {
    serviceKey,
    name,
    family,
    match,
    affinitySeconds,
    healthCheckNodePort,
    endpoints,
    vips,
    nodePort: hasNodePort
      ? { protocol: match.protocol, port: nodePort, dispatch: external }
      : undefined,
    external: hasNodePort || vips.some((vip) => vip.dispatch === external) ? external : undefined,
  };
}

/** Whether the node's addresses matter to the plan of a Route: only to `allowsOwnVips`. */
export function dependsOnNodeAddresses({ sourceRanges }: Route): boolean {
  return sourceRanges !== undefined;
}

/**
 * Whether the load balancer VIPs of a Route may use each other: if the node is inside the source ranges, for when it calls
 * a VIP that it holds, the VIP is its source.
 */
export function allowsOwnVips(
  { sourceRanges = [] }: Route,
  nodeAddresses: readonly string[],
): boolean {
  return sourceRanges.some((cidr) => nodeAddresses.some((address) => cidrContains(cidr, address)));
}

/**
 * Whether connections of an endpoint to itself need masquerade of their own: a pod that is sent back to itself must see the
 * node as its source, or it would answer itself directly. Traffic of a pod of another node is translated there. What comes
 * through this node all the same goes to an external VIP, and is masqueraded anyway unless the policy is Local.
 * Where a rule of each endpoint says it, as in kube-proxy's modes, it may be said of all endpoints.
 */
export function needsHairpin({ external }: TrafficPlan, { isRemote }: Endpoint): boolean {
  return isRemote !== true || external?.podsAndNode !== undefined;
}
