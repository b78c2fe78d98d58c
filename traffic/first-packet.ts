/**
 * What a TrafficPlan means for the first packet of one connection: the Route that handles it, the endpoints of its
 * client, masquerade. Backends render the same decisions as rules for all packets.
 */
import { cidrContains } from '../api/addresses.ts';
import { compareText } from '../api/collections.ts';
import type { Protocol } from '../api/objects.ts';
import { sliceOf } from '../api/owned-ports.ts';
import { hasPort, type PortRange, withoutRanges } from '../api/ports.ts';
import type { Endpoint } from '../endpoints/select.ts';
import type { SliceOwner } from '../endpoints/slice-owners.ts';
import { type OwnedSlices, ownerAt, type Route } from '../services/route.ts';
import { clientSlot, slotTable } from './consistent-hash.ts';
import { nonPodClients, type TrafficOptions } from './options.ts';
import {
  allowsOwnVips,
  type Dispatch,
  type EndpointPool,
  type NodePortPlan,
  spokenPorts,
  type TrafficPlan,
  trafficPlan,
  type VipPlan,
} from './plan.ts';

/** The first packet of a connection before any rule, as the node receives or sends it. */
export interface FirstPacket {
  readonly destination: string;
  readonly protocol: Protocol;
  readonly port: number;
}

/** How rules classify the source of a packet. */
export interface PacketClient {
  /** undefined: an unknown address outside the cluster. */
  readonly address: string | undefined;
  /** `nonPodClients` does not include it: the local detector matches. */
  readonly isPod: boolean;
  /** The source is an address of this node. */
  readonly isNode: boolean;
}

/** What handles a packet. */
export type PacketHandler =
  | { readonly by: 'vip'; readonly route: Route; readonly plan: TrafficPlan; readonly vip: VipPlan }
  | {
      readonly by: 'node port';
      readonly route: Route;
      readonly plan: TrafficPlan;
      readonly nodePort: NodePortPlan;
    }
  /** The node itself answers, see `VipPlan.healthCheckPort`. */
  | { readonly by: 'health check'; readonly route: Route }
  /** The VIP has only port-range Services, and no range contains the port: rejected. */
  | { readonly by: 'outside ranges'; readonly routes: readonly Route[] }
  /** The VIP serves other ports only. */
  | { readonly by: 'other ports'; readonly routes: readonly Route[] }
  | { readonly by: 'nothing' };

/** The node's side of `handlerOf`. */
export interface NodeSide {
  /** All addresses of the node, see `allowsOwnVips`. */
  readonly addresses: readonly string[];
  /** Whether node ports are served on an address. */
  readonly isNodePortAddress: (address: string) => boolean;
}

/**
 * The Route that handles a packet. On one VIP a listed port precedes a health check node port, port ranges, and all
 * ports; VIPs precede node ports.
 * @param routes all Routes that have the destination as VIP, and those with a node port; others have no effect.
 */
export function handlerOf(
  routes: readonly Route[],
  packet: FirstPacket,
  { addresses, isNodePortAddress }: NodeSide,
): PacketHandler {
  const { destination, protocol, port } = packet;
  const onVip = routes.flatMap((route) => {
    const plan = trafficPlan(route, allowsOwnVips(route, addresses));
    const vip = plan.vips.find((each) => each.vip === destination);
    return vip === undefined ? [] : [{ by: 'vip', route, plan, vip } as const];
  });
  const exact = onVip.find(
    ({ plan: { match } }) =>
      match.kind === 'port' && match.protocol === protocol && match.port === port,
  );
  if (exact !== undefined) return exact;
  const probed = onVip.find(
    ({ vip }) => protocol === 'TCP' && vip.healthCheckPort > 0 && vip.healthCheckPort === port,
  );
  if (probed !== undefined) return { by: 'health check', route: probed.route };
  const inRange = onVip.find(
    ({ plan: { match } }) =>
      match.kind === 'ranges' && match.ranges.some((range) => hasPort(range, protocol, port)),
  );
  const handler = inRange ?? onVip.find(({ plan: { match } }) => match.kind === 'all');
  if (handler !== undefined) return handler;
  const ranges = onVip.filter(({ plan: { match } }) => match.kind === 'ranges');
  if (ranges.length > 0) return { by: 'outside ranges', routes: ranges.map(({ route }) => route) };
  return (
    nodePortHandler(routes, packet, isNodePortAddress) ??
    (onVip.length > 0
      ? { by: 'other ports', routes: onVip.map(({ route }) => route) }
      : { by: 'nothing' })
  );
}

function nodePortHandler(
  routes: readonly Route[],
  { destination, protocol, port }: FirstPacket,
  isNodePortAddress: NodeSide['isNodePortAddress'],
): PacketHandler | undefined {
  if (!isNodePortAddress(destination)) return undefined;
  for (const route of routes) {
    if (route.nodePort !== port) continue;
    const plan = trafficPlan(route, false);
    const { nodePort } = plan;
    if (nodePort?.protocol === protocol) return { by: 'node port', route, plan, nodePort };
  }
  return undefined;
}

/** Whether the owner gets a packet to an owned port, and why not. */
export type SliceDecision = {
  /** The slice; undefined for ports that are left over at the end of a range. */
  readonly slice: PortRange | undefined;
  readonly ordinal: number | undefined;
} & (
  | { readonly why: 'owned'; readonly owner: SliceOwner }
  | { readonly why: 'not serving'; readonly owner: SliceOwner }
  | { readonly why: 'vacant' | 'left over' | 'other VIP'; readonly owner: undefined }
);

/** The owner that gets a packet to an owned port. @param packet to a port in a range of `owned`. */
export function sliceDecision(owned: OwnedSlices, packet: FirstPacket): SliceDecision {
  const { destination, protocol, port } = packet;
  const { ranges, portsPerPod, udpVip } = owned;
  const range = ranges.find((each) => hasPort(each, protocol, port));
  const ordinal = range && Math.floor((port - range.from) / portsPerPod);
  const slice =
    range === undefined || ordinal === undefined ? undefined : sliceOf(range, portsPerPod, ordinal);
  if (protocol === 'UDP' && destination !== udpVip) {
    return { slice, ordinal, owner: undefined, why: 'other VIP' };
  }
  if (slice === undefined) return { slice, ordinal, owner: undefined, why: 'left over' };
  const owner = ownerAt(owned, protocol, port);
  if (owner === undefined) return { slice, ordinal, owner, why: 'vacant' };
  return { slice, ordinal, owner, why: owner.serves ? 'owned' : 'not serving' };
}

/**
 * Whether a TCP or SCTP connection to the owner of its port is masqueraded: only if the answer would not come back through
 * this node otherwise.
 */
export function ownedMasqueradeOf(
  { address, node }: SliceOwner,
  client: PacketClient,
  options: Pick<TrafficOptions, 'masqueradeAll' | 'localDetector'>,
): MasqueradeReason {
  if (client.address === address) return { masqueraded: true, why: 'hairpin' };
  if (node === 'this') return { masqueraded: false, why: 'local owner' };
  if (nonPodClients(options) === 'all') return { masqueraded: true, why: 'masquerade-all' };
  return client.isPod
    ? { masqueraded: false, why: 'pod' }
    : { masqueraded: true, why: 'remote owner' };
}

/** Ports from which an owner speaks as a VIP. */
export interface SpokenPorts {
  readonly route: Route;
  readonly vip: string;
  readonly ports: readonly PortRange[];
}

/** The UDP ports from which a pod speaks as VIPs. Of two Services that give it one port, the older speaks. */
export function spokenPortsOf(routes: readonly Route[], address: string): SpokenPorts[] {
  const byAge = routes.toSorted((a, b) =>
    compareText(a.owned?.priority ?? '', b.owned?.priority ?? ''),
  );
  const taken: PortRange[] = [];
  return byAge.flatMap((route) => {
    const ports = withoutRanges(spokenPorts(route, address), taken);
    taken.push(...ports);
    const vip = route.owned?.udpVip;
    return vip === undefined || ports.length === 0 ? [] : [{ route, vip, ports }];
  });
}

/** @returns undefined if it depends on the unknown address of the client. */
export function isSourceAllowed(
  { sources }: Pick<VipPlan, 'sources'>,
  { address }: PacketClient,
): boolean | undefined {
  if (sources === undefined) return true;
  if (address === undefined) return undefined;
  return (
    sources.ranges.some((cidr) => cidrContains(cidr, address)) || sources.ownVips.includes(address)
  );
}

/** The endpoints that a client may get, see `Dispatch.podsAndNode`. */
export function poolOf(
  { podsAndNode, others }: Dispatch,
  { isPod, isNode }: PacketClient,
): EndpointPool {
  const usesOwn = (isPod || isNode) && podsAndNode !== undefined;
  return usesOwn && podsAndNode.endpoints.length > 0 ? podsAndNode : others;
}

/** The slot of a client, and the endpoint of the slot. */
export interface HashedEndpoint {
  readonly slot: number;
  readonly endpoint: Endpoint;
}

/**
 * The endpoint that consistent hashing selects.
 * @param sourcePort undefined: unknown.
 * @returns undefined without consistent hashing, and if it depends on an unknown address or port of the client.
 */
export function hashedEndpoint(
  { consistentHash: input, serviceKey }: TrafficPlan,
  { endpoints }: EndpointPool,
  { address }: PacketClient,
  sourcePort: number | undefined,
): HashedEndpoint | undefined {
  if (input === undefined || address === undefined) return undefined;
  if (input === 'client-address-and-port' && sourcePort === undefined) return undefined;
  const slot = clientSlot(input, address, sourcePort ?? 0);
  const endpoint = slotTable(serviceKey, endpoints)[slot];
  return endpoint && { slot, endpoint };
}

/** Why a connection is masqueraded, or why it is not. */
export type MasqueradeReason =
  | {
      readonly masqueraded: true;
      readonly why: 'all' | 'masquerade-all' | 'non-pod' | 'node' | 'hairpin' | 'remote owner';
    }
  | {
      readonly masqueraded: false;
      readonly why: 'pod' | 'no detector' | 'traffic policy' | 'local owner';
    };

/** Whether the connection of a client to an endpoint of its pool is masqueraded, see `Dispatch.masquerade`. */
export function masqueradeOf(
  dispatch: Dispatch,
  client: PacketClient,
  endpoint: Endpoint,
  options: Pick<TrafficOptions, 'masqueradeAll' | 'localDetector'>,
): MasqueradeReason {
  const reason = masqueradeOfDispatch(dispatch, client, options);
  if (reason.masqueraded || endpoint.address !== client.address) return reason;
  return { masqueraded: true, why: 'hairpin' };
}

function masqueradeOfDispatch(
  dispatch: Dispatch,
  client: PacketClient,
  options: Pick<TrafficOptions, 'masqueradeAll' | 'localDetector'>,
): MasqueradeReason {
  switch (dispatch.masquerade) {
    case 'all':
      return { masqueraded: true, why: 'all' };
    case 'node': {
      if (client.isPod) return { masqueraded: false, why: 'pod' };
      const usesOwn = poolOf(dispatch, client) === dispatch.podsAndNode;
      return client.isNode && usesOwn
        ? { masqueraded: true, why: 'node' }
        : { masqueraded: false, why: 'traffic policy' };
    }
    case 'non-pods': {
      const clients = nonPodClients(options);
      if (clients === 'all') return { masqueraded: true, why: 'masquerade-all' };
      if (clients === 'none') return { masqueraded: false, why: 'no detector' };
      return client.isPod
        ? { masqueraded: false, why: 'pod' }
        : { masqueraded: true, why: 'non-pod' };
    }
  }
}
