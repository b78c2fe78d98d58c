/** Why a packet to a VIP or node port is rejected or dropped. Pure. */
import { cidrContains } from '../../api/addresses.ts';
import { rangeText } from '../../api/ports.ts';
import { protocolOf } from '../../netlink/core/protocol.ts';
import type { ModeTraffic } from '../../proxier/kernel-rule.ts';
import type { OwnedSlices, Route } from '../../services/route.ts';
import { sliceDecision } from '../../traffic/first-packet.ts';
import { allowsOwnVips, type Dispatch, trafficPlan } from '../../traffic/plan.ts';
import type { Destinations } from './flow-entry.ts';
import type { PacketHeader } from './packet.ts';
import type { Destination } from './service-index.ts';

/** How the proxy mode treats packets that were not translated. */
export interface RefusalRules extends Destinations {
  /** All addresses of this node. */
  readonly nodeAddresses: readonly string[];
  /** VIPs whose ports without a Service port are rejected. */
  readonly rejectsOtherPorts: ModeTraffic['rejectsOtherPorts'];
  /** Whether packets that will be translated may come as well: IPVS translates later. */
  readonly mayBeTranslated: boolean;
}

export interface PacketRefusal {
  readonly event: 'rejected' | 'dropped';
  /** `namespace/name` */
  readonly service: string;
  readonly reason: string;
}

/**
 * Explains what happens to a new, untranslated packet.
 * @returns undefined if the agent's rules let it pass, or if no Service has the destination.
 */
export function explainRefusal(
  packet: PacketHeader,
  rules: RefusalRules,
): PacketRefusal | undefined {
  const protocol = protocolOf(packet.protocol);
  if (protocol === undefined) return undefined;
  const { destination: address, destinationPort: port } = packet;
  const route = rules.index.find({ protocol, address, port }, rules.isNodeAddress);
  if (route === undefined) return otherPort({ address, port, protocol }, rules);
  const plan = trafficPlan(route, allowsOwnVips(route, rules.nodeAddresses));
  const vip = plan.vips.find((each) => each.vip === address);
  if (port !== 0 && vip?.healthCheckPort === port && protocol === 'TCP') return undefined;
  const sources = vip?.sources;
  if (sources !== undefined && !sources.ownVips.includes(packet.source)) {
    if (!sources.ranges.some((cidr) => cidrContains(cidr, packet.source))) {
      const reason = `source ${packet.source} is not in loadBalancerSourceRanges`;
      return { event: 'dropped', service: route.serviceKey, reason };
    }
  }
  if (route.owned !== undefined && port !== 0) {
    const reason = unownedReason(route.owned, { address, port, protocol });
    return { event: 'rejected', service: route.serviceKey, reason };
  }
  const dispatch = vip?.dispatch ?? plan.nodePort?.dispatch;
  return dispatch && untranslated(route, dispatch, port, rules);
}

/** A port that no Service has; see `handlerOf` in traffic/first-packet.ts. */
function otherPort(
  { address, port, protocol }: Destination,
  { index, rejectsOtherPorts, nodeAddresses }: RefusalRules,
): PacketRefusal | undefined {
  const routes = index.routesOf(address);
  const isHealthCheck = routes.some((route) => {
    const { vips } = trafficPlan(route, allowsOwnVips(route, nodeAddresses));
    const vip = vips.find((each) => each.vip === address);
    return protocol === 'TCP' && port > 0 && vip?.healthCheckPort === port;
  });
  if (isHealthCheck) return undefined;
  const rejecting = routes.find(
    ({ match, clusterIP }) =>
      match.kind === 'ranges' ||
      (rejectsOtherPorts === 'cluster IPs' && clusterIP === address) ||
      (rejectsOtherPorts === 'vips' && !nodeAddresses.includes(address)),
  );
  if (rejecting === undefined) return undefined;
  const reason = `no Service port ${port}/${protocol}`;
  return { event: 'rejected', service: rejecting.serviceKey, reason };
}

function untranslated(
  route: Route,
  { untranslatedVerdict, others }: Dispatch,
  port: number,
  { mayBeTranslated }: RefusalRules,
): PacketRefusal | undefined {
  const service = route.serviceKey;
  if (port === 0) return { event: 'dropped', service, reason: 'port 0' };
  const hasEndpoints = others.endpoints.length > 0;
  if (untranslatedVerdict === undefined || (hasEndpoints && mayBeTranslated)) return undefined;
  const event = untranslatedVerdict === 'reject' ? 'rejected' : 'dropped';
  if (hasEndpoints) return { event, service, reason: 'not translated' };
  const reason = route.hasEndpointsAnywhere
    ? 'no endpoint on this node, and the traffic policy is Local'
    : 'no endpoint';
  return { event, service, reason };
}

function unownedReason(owned: OwnedSlices, { address, port, protocol }: Destination): string {
  const decision = sliceDecision(owned, { destination: address, port, protocol });
  const text = `port ${port}/${protocol}`;
  switch (decision.why) {
    case 'vacant':
      return `no pod owns ${text}: slice ${decision.slice ? rangeText(decision.slice) : ''} is vacant`;
    case 'left over':
      return `no pod owns ${text}: it is left over at the end of its range`;
    case 'not serving':
      return `pod ${decision.owner.address} owns ${text}, and does not serve`;
    case 'other VIP':
      return owned.udpVip === undefined
        ? 'another Service has the VIP as which owners of UDP ports would speak'
        : `owned UDP ports are served on ${owned.udpVip} only`;
    case 'owned':
      return 'not translated';
  }
}

/** Whether packets to a Route may be refused: the kernel needs to log no others. */
export function mayRefuse(
  route: Route,
  { mayBeTranslated }: { mayBeTranslated: boolean },
): boolean {
  // Elsewhere only packets that were not translated are logged anyway.
  if (!mayBeTranslated) return true;
  const { clusterEndpoints, localEndpoints, internalLocal, externalLocal, sourceRanges } = route;
  const needsLocal = internalLocal || externalLocal;
  const needsCluster = !internalLocal || !externalLocal;
  return (
    sourceRanges !== undefined ||
    (needsCluster && clusterEndpoints.length === 0) ||
    (needsLocal && localEndpoints.length === 0)
  );
}
