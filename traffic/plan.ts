/**
 * Plans how packets to the VIPs and the node port of a Route are handled. The decisions are made here once for all
 * backends, which only render a TrafficPlan as rules.
 */
import { cidrContains } from '../api/addresses.ts';
import type { Protocol } from '../api/objects.ts';
import { sliceOf } from '../api/owned-ports.ts';
import { type PortRange, withoutRanges } from '../api/ports.ts';
import type { Endpoint } from '../endpoints/select.ts';
import type { OwnerNode } from '../endpoints/slice-owners.ts';
import type { OwnedSlices, Route } from '../services/route.ts';

/** Endpoints for traffic policy Cluster (with topology hints applied), or for Local. */
export type EndpointSet = 'cluster' | 'local';

/** The endpoints that a client may get. */
export interface EndpointPool {
  readonly set: EndpointSet;
  /** All endpoints of the set; empty if these clients are not served. */
  readonly endpoints: readonly Endpoint[];
}

/** Reject with ICMP, or drop. `TrafficOptions.resetsTcp` changes both for established TCP connections. */
export type UntranslatedVerdict = 'reject' | 'drop';

/** How a VIP or node port handles packets from allowed sources. */
export interface Dispatch {
  /**
   * Endpoints for local pods and for the node itself with externalTrafficPolicy Local: the policy applies to external
   * clients only. If this pool is empty, pods and the node get `others`. undefined: all clients get `others`.
   */
  readonly podsAndNode: EndpointPool | undefined;
  readonly others: EndpointPool;
  /**
   * Clients to masquerade, so that replies return through this node. `non-pods`: see `nonPodClients`. `node`: only the
   * node's own traffic, whose source may be the VIP; with externalTrafficPolicy Local external clients and pods keep
   * their source address. Hairpin connections are masqueraded as well, see `needsHairpin`.
   */
  readonly masquerade: 'all' | 'non-pods' | 'node';
  /**
   * Verdict for packets that were not translated. Without endpoints the packets are rejected, or dropped if only other
   * nodes have endpoints, as in kube-proxy. A VIP with all ports or port ranges rejects untranslated packets even with
   * endpoints, so that none reaches a listener of the host. undefined: no verdict, the packets pass.
   */
  readonly untranslatedVerdict: UntranslatedVerdict | undefined;
}

/** Sources that may use a VIP; packets from other sources are dropped. */
export interface AllowedSources {
  /** CIDRs (`loadBalancerSourceRanges`). */
  readonly ranges: readonly string[];
  /** Addresses of the Route's own load balancer VIPs, see `allowsOwnVips`. */
  readonly ownVips: readonly string[];
}

/** How packets to one VIP are handled. */
export interface VipPlan {
  readonly vip: string;
  /** Kind of the VIP, spelled as in the comments of kube-proxy's rules. */
  readonly kind: 'cluster IP' | 'external IP' | 'loadbalancer IP';
  readonly dispatch: Dispatch;
  /** undefined: all sources are allowed. */
  readonly sources: AllowedSources | undefined;
  /**
   * TCP port (`spec.healthCheckNodePort`) that the node answers itself on an all-ports VIP: pass-through load balancers
   * probe the port on the VIP. 0 for none.
   */
  readonly healthCheckPort: number;
}

/** How packets to the node port are handled. */
export interface NodePortPlan {
  readonly protocol: Protocol;
  readonly port: number;
  readonly dispatch: Dispatch;
}

/** Ports of an address, and the address that packets to or from them get. */
export interface SliceTranslation {
  readonly address: string;
  readonly ports: PortRange;
  readonly becomes: string;
  readonly node: OwnerNode;
}

/** How packets of owned ports are translated. */
export interface OwnedPlan {
  /** New packets to ports of a VIP: the owner that serves. UDP without connection tracking, TCP and SCTP with it. */
  readonly inbound: readonly SliceTranslation[];
  /** UDP packets from ports of an owner, serving or not: the VIP. */
  readonly outbound: readonly SliceTranslation[];
  /** The VIP as which owners speak, with all owned UDP ports; undefined without UDP ports or if the VIP is refused. */
  readonly speaker: { readonly vip: string; readonly ports: readonly PortRange[] } | undefined;
  /** Ports of a whole slice. */
  readonly portsPerPod: number;
  /** Whether UDP slices may be parts only, because another Service has some of the ports. */
  readonly hasParts: boolean;
}

/** Everything that a backend renders of a Route. */
export interface TrafficPlan
  extends Pick<
    Route,
    | 'serviceKey'
    | 'name'
    | 'family'
    | 'match'
    | 'affinitySeconds'
    | 'consistentHash'
    | 'healthCheckNodePort'
  > {
  readonly endpoints: Readonly<Record<EndpointSet, readonly Endpoint[]>>;
  /** All VIPs; the cluster IP, if any, comes first. */
  readonly vips: readonly VipPlan[];
  /** Set if pods own the ports. The plans of the VIPs then hold for packets to ports without an owner. */
  readonly owned: OwnedPlan | undefined;
  readonly nodePort: NodePortPlan | undefined;
  /** Dispatch of the node port, external IPs and load balancer IPs; undefined if the Route has none of them. */
  readonly external: Dispatch | undefined;
}

/** Ports from which a pod speaks for an older Service, by address. */
export type SpokenFor = ReadonlyMap<string, readonly PortRange[]>;

/**
 * Plans a Route.
 * @param ownVips whether its load balancer VIPs are allowed sources, see `allowsOwnVips`.
 * @param spokenFor may be omitted if no owner of the Route owns ports of another Service.
 */
export function trafficPlan(route: Route, ownVips: boolean, spokenFor?: SpokenFor): TrafficPlan {
  const { serviceKey, name, family, match, affinitySeconds, healthCheckNodePort } = route;
  const { clusterIP, externalIPs, loadBalancerIPs, nodePort, sourceRanges, consistentHash } = route;
  const endpoints = { cluster: route.clusterEndpoints, local: route.localEndpoints };
  const pool = (set: EndpointSet): EndpointPool => ({ set, endpoints: endpoints[set] });
  const dispatch = (
    podsAndNode: EndpointPool | undefined,
    others: EndpointPool,
    masquerade: Dispatch['masquerade'],
  ): Dispatch => {
    const withEndpoints = match.kind === 'port' ? undefined : 'reject';
    const withoutEndpoints = route.hasEndpointsAnywhere ? 'drop' : 'reject';
    const untranslatedVerdict = others.endpoints.length > 0 ? withEndpoints : withoutEndpoints;
    return {
      podsAndNode,
      others,
      masquerade,
      untranslatedVerdict,
    };
  };
  const internal = dispatch(undefined, pool(route.internalLocal ? 'local' : 'cluster'), 'non-pods');
  const external = route.externalLocal
    ? dispatch(pool('cluster'), pool('local'), 'node')
    : dispatch(undefined, pool('cluster'), 'all');

  const unrestricted = { sources: undefined, healthCheckPort: 0 };
  const vips: VipPlan[] = [];
  if (clusterIP !== undefined) {
    vips.push({ vip: clusterIP, kind: 'cluster IP', dispatch: internal, ...unrestricted });
  }
  for (const vip of externalIPs) {
    vips.push({ vip, kind: 'external IP', dispatch: external, ...unrestricted });
  }
  // Source ranges apply only if there is an endpoint; without endpoints packets from all sources are rejected.
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
      healthCheckPort,
    });
  }
  const hasNodePort = nodePort > 0 && match.kind === 'port';
  return {
    serviceKey,
    name,
    family,
    match,
    affinitySeconds,
    ...(consistentHash === undefined ? {} : { consistentHash }),
    healthCheckNodePort,
    endpoints,
    vips,
    owned: route.owned && ownedPlan(route.owned, vips, spokenFor),
    nodePort: hasNodePort
      ? { protocol: match.protocol, port: nodePort, dispatch: external }
      : undefined,
    external: hasNodePort || vips.some((vip) => vip.dispatch === external) ? external : undefined,
  };
}

/** The UDP ports that a pod owns by a Route, which it speaks from as the VIP of the Route. */
export function spokenPorts({ owned }: Route, address: string): PortRange[] {
  if (owned?.udpVip === undefined) return [];
  const { ranges, portsPerPod, taken, udpVip } = owned;
  const slices = owned.owners
    .filter((owner) => owner.address === address)
    .flatMap(({ ordinal }) => ranges.flatMap((range) => sliceOf(range, portsPerPod, ordinal) ?? []))
    .filter(({ protocol }) => protocol === 'UDP');
  return withoutRanges(slices, taken.get(udpVip) ?? []);
}

function ownedPlan(
  { ranges, portsPerPod, owners, udpVip, taken }: OwnedSlices,
  vips: readonly VipPlan[],
  spokenFor: SpokenFor | undefined,
): OwnedPlan {
  const inbound: SliceTranslation[] = [];
  const outbound: SliceTranslation[] = [];
  for (const { vip } of vips) {
    const takenHere = taken.get(vip) ?? [];
    for (const range of ranges) {
      const isUdp = range.protocol === 'UDP';
      if (isUdp && vip !== udpVip) continue;
      for (const { ordinal, address, serves, node } of owners) {
        const slice = sliceOf(range, portsPerPod, ordinal);
        if (slice === undefined) continue;
        for (const ports of withoutRanges([slice], takenHere)) {
          if (serves) inbound.push({ address: vip, ports, becomes: address, node });
          if (!isUdp) continue;
          for (const spoken of withoutRanges([ports], spokenFor?.get(address) ?? []))
            outbound.push({ address, ports: spoken, becomes: vip, node });
        }
      }
    }
  }
  const udpTaken = taken.get(udpVip ?? '') ?? [];
  const udp = withoutRanges(
    ranges.filter(({ protocol }) => protocol === 'UDP'),
    udpTaken,
  );
  const speaker =
    udpVip === undefined || udp.length === 0 ? undefined : { vip: udpVip, ports: udp };
  const hasParts = udpTaken.length > 0 || (spokenFor?.size ?? 0) > 0;
  return { inbound, outbound, speaker, portsPerPod, hasParts };
}

/** Whether the plan of a Route depends on the node's addresses, see `allowsOwnVips`. */
export function dependsOnNodeAddresses({ sourceRanges }: Route): boolean {
  return sourceRanges !== undefined;
}

/**
 * Whether the load balancer VIPs of a Route are allowed sources: yes if the source ranges contain an address of this
 * node. If the node holds a VIP and connects to that VIP, the source address is the VIP.
 */
export function allowsOwnVips(
  { sourceRanges = [] }: Route,
  nodeAddresses: readonly string[],
): boolean {
  return sourceRanges.some((cidr) => nodeAddresses.some((address) => cidrContains(cidr, address)));
}

/**
 * Whether hairpin connections (from an endpoint through a VIP to itself) need a separate masquerade rule. Without
 * masquerade the pod would answer itself directly. The node of a pod translates the pod's packets. Hairpin packets of a
 * pod on another node therefore pass this node only on the way to an external VIP, where rules masquerade them unless
 * externalTrafficPolicy is Local. Modes with a rule for each endpoint, like kube-proxy's iptables mode, may masquerade
 * hairpin connections of all endpoints.
 */
export function needsHairpin({ external }: TrafficPlan, { isRemote }: Endpoint): boolean {
  return isRemote !== true || external?.podsAndNode !== undefined;
}
