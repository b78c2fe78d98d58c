/**
 * Which policy denied a packet. The kernel logs tier and direction only; the policy follows from the policies that the
 * agent has when it reads the packet. Pure.
 */
import type { ObjectKey } from '../../api/objects.ts';
import type { Policy } from '../../api/policy-objects.ts';
import { protocolOf } from '../../netlink/core/protocol.ts';
import type { OriginalDestination } from '../../netlink/nflog/log-group.ts';
import { type DirectionVerdict, explainDirection } from '../../policy/model/explain.ts';
import type { PolicyModel } from '../../policy/model/model.ts';
import type { Direction } from '../../policy/model/terms.ts';
import { type Route, vipsOf } from '../../services/route.ts';
import type { FlowEvent } from '../api/traffic.ts';
import type { FqdnSources } from '../views/policies.ts';
import type { Destinations } from './flow-entry.ts';
import { type FlowFilter, matchesFlow } from './flow-filter.ts';
import type { PacketHeader } from './packet.ts';

/** What the explanation reads of network policy. */
export interface DenialPolicies {
  readonly model: PolicyModel;
  readonly names: Pick<FqdnSources, 'hasPeer'>;
}

interface Denial {
  /** One sentence. */
  readonly reason: string;
  /** See `FlowEvent.policies`. */
  readonly policies: readonly string[];
}

/** The prefix of the log rules of network policy, see `policy/compile/policy-table.ts`. */
const PREFIX = /^portwide deny (admin|network-policy|baseline) (ingress|egress) ?$/;
/** Policies in one event. */
const MAX_POLICIES = 10;
const TIERS: Readonly<Record<string, Policy['tier']>> = {
  admin: 'Admin',
  'network-policy': 'NetworkPolicy',
  baseline: 'Baseline',
};

/**
 * Explains a packet that a rule of network policy logged.
 * @param packet after DNAT and before masquerade, as policies see it.
 * @param policies undefined without network policy.
 * @returns undefined if another program logged the packet.
 */
export function explainDenial(
  prefix: string,
  packet: PacketHeader,
  policies: DenialPolicies | undefined,
): Denial | undefined {
  const [, name = '', direction] = PREFIX.exec(prefix) ?? [];
  const tier = TIERS[name];
  if (tier === undefined) return undefined;
  const kernel = `network policy (tier ${tier}, ${direction})`;
  const found = policies && verdictOf(packet, direction as Direction, policies);
  if (found === undefined) return { reason: kernel, policies: [] };
  // The kernel has an older or newer state of the policies for a moment.
  if (found.verdict === 'allow' || found.tier !== tier)
    return { reason: `${kernel}; the policies have changed since: ${found.reason}`, policies: [] };
  const notLearned = found.notLearned.map(
    (rule) =>
      `; ${rule} does not match, because this agent saw no DNS answer for it with the address`,
  );
  return {
    reason: `${kernel}: ${reasonOf(found)}${notLearned.slice(0, MAX_POLICIES).join('')}`,
    policies: found.policies.slice(0, MAX_POLICIES),
  };
}

/** The Service of a denied packet. */
interface DeniedService {
  /** `namespace/name`; null if no Service has the destination or the endpoint. */
  readonly service: ObjectKey | null;
  /** Where the client sent the packet, as far as it is known. */
  readonly destination: OriginalDestination;
  /** Follows the reason; empty if no other Service has the endpoint. */
  readonly note: string;
  /** Routes that the client may have used; empty if its destination is known. */
  readonly possible: readonly Route[];
}

/**
 * Finds the Service of a denied packet: the one that translated it, else the first one by name with the endpoint.
 * @param packet after DNAT.
 * @param original see `LoggedPacket`.
 */
export function serviceOfDenied(
  packet: PacketHeader,
  original: OriginalDestination | undefined,
  { index, isNodeAddress }: Destinations,
): DeniedService {
  const endpoint = { address: packet.destination, port: packet.destinationPort };
  const protocol = protocolOf(packet.protocol);
  if (protocol === undefined) {
    return { service: null, destination: endpoint, note: '', possible: [] };
  }
  const isTranslated =
    original !== undefined &&
    (original.address !== endpoint.address || original.port !== endpoint.port);
  if (isTranslated) {
    const service = index.find({ protocol, ...original }, isNodeAddress)?.serviceKey;
    if (service !== undefined) return { service, destination: original, note: '', possible: [] };
  }
  const destination = original ?? endpoint;
  const possible = index.routesOfEndpoint({ protocol, ...endpoint });
  const services = [...new Set(possible.map(({ serviceKey }) => serviceKey))];
  const [service = null, second, ...more] = services;
  if (second === undefined) return { service, destination, note: '', possible };
  const others = more.length === 0 ? second : `${second} and ${more.length} more`;
  return { service, destination, note: `; also an endpoint of Service ${others}`, possible };
}

/** Whether a filter may mean a denied packet, by a Service, VIP or port that its client may have used. */
export function matchesDenied(
  event: Pick<FlowEvent, 'event' | 'service' | 'flow'>,
  possible: readonly Route[],
  filter: FlowFilter,
): boolean {
  if (matchesFlow(event, filter)) return true;
  return possible.some((route) => {
    const ports = (port: number) =>
      route.match.kind === 'port' ? [route.match.port, route.nodePort].includes(port) : false;
    return matchesFlow(
      { ...event, service: route.serviceKey },
      {
        ...filter,
        ip: filter.ip !== undefined && vipsOf(route).includes(filter.ip) ? undefined : filter.ip,
        port: filter.port !== undefined && ports(filter.port) ? undefined : filter.port,
      },
    );
  });
}

/** Hundreds of policies may isolate a pod. */
function reasonOf({ policies, reason }: DirectionVerdict): string {
  if (policies.length <= MAX_POLICIES) return reason;
  const more = policies.length - MAX_POLICIES;
  const listed = policies.slice(0, MAX_POLICIES).join(', ');
  return `the pod is isolated by ${listed} and ${more} more, and none of their rules allows it`;
}

function verdictOf(
  { source, destination, protocol, destinationPort }: PacketHeader,
  direction: Direction,
  { model, names }: DenialPolicies,
): DirectionVerdict | undefined {
  return explainDirection(model, direction, {
    from: { address: source },
    to: { address: destination },
    protocol,
    port: destinationPort,
    // This node evaluates egress of its own pods only, and inspects the DNS answers to them.
    ...(direction === 'egress' ? { isFqdnAddress: names.hasPeer } : {}),
  });
}
