/**
 * Chains for ports owned by pods, which exist only while a Service has owned ports. The path of a UDP packet, without
 * connection tracking:
 *
 *   raw prerouting, output ─ owned-prerouting, owned-output
 *     to VIP and port of a slice ──── destination becomes the owner; not tracked
 *     to or from a slice otherwise ── not tracked: an owner speaks, or another node has rewritten the packet
 *   postrouting, input ───── owned-postrouting, owned-input: from an owner's slice ── source becomes the VIP
 *
 * The source changes last, because reverse path filters and "martian source" checks judge packets in prerouting. To a
 * process of the owner's own node the packet passes hook input instead of postrouting.
 *
 * A slice without owner matches nothing there. Its packets are tracked, and rejected like others that no endpoint takes,
 * also if an owner sends them.
 * TCP and SCTP packets are tracked and translated in the nat chains, see `trackedChain`.
 */
import { getOrCreate } from '../api/collections.ts';
import { type IpFamily, PROTOCOLS } from '../api/objects.ts';
import { baseAt } from '../netlink/nftables/hooks.ts';
import type { NftBaseChain } from '../netlink/nftables/types.ts';
import {
  ACCEPT,
  DROP,
  goTo,
  IS_INVALID,
  IS_UNTRACKED,
  isIcmp,
  isNoEchoReply,
  NOTRACK,
  protocolIs,
  type RulePart,
  type RuleParts,
  rulePartsFor,
  setMarkBit,
} from '../nft/rule.ts';
import { SPEAKER_PRIORITY } from '../nft/speaker-priority.ts';
import { nonPodClients } from '../traffic/options.ts';
import { type ChainOptions, isPod, memoized, type NftChain, REJECT_CHAIN } from './chains.ts';
import { type MapName, SLICE_PARTS, sliceMap } from './maps.ts';

/** The part of the maps of slices that has an address. @param address In network order. */
export function partOf(address: Buffer): number {
  return (address.at(-1) ?? 0) % SLICE_PARTS;
}

const LAST_BITS = SLICE_PARTS - 1;
/** Priority before connection tracking, `raw` in nft. */
const RAW = -300;

/** Base chains that lead UDP packets of owned ports to the chains of parts. */
export function ownedBaseChains(options: ChainOptions): NftChain[] {
  const { source, destination, inSet, verdictMapOfLastBits } = rulePartsFor(options.family);
  const udp = protocolIs('UDP');
  const isTo = inSet([destination], 'owned-addresses');
  const isFrom = inSet([source], 'owned-addresses');
  const packets: RuleParts[] = [
    [udp, isTo, verdictMapOfLastBits(destination, LAST_BITS, 'owned-destinations')],
    [udp, isFrom, verdictMapOfLastBits(source, LAST_BITS, 'owned-sources')],
  ];
  const answers: RuleParts[] = [
    [IS_UNTRACKED, udp, verdictMapOfLastBits(source, LAST_BITS, 'owned-speakers')],
    ...errorRules(options.family),
  ];
  const early: MapName[] = ['owned-addresses', 'owned-destinations', 'owned-sources'];
  const late: MapName[] = ['owned-addresses', 'owned-speakers'];
  const { inbound, outbound } = translationHooks();
  const { input, postrouting } = SPEAKER_HOOKS;
  return [
    baseChain('owned-prerouting', inbound, packets, early, options),
    baseChain('owned-output', outbound, packets, early, options),
    baseChain('owned-input', input, answers, late, options),
    baseChain('owned-postrouting', postrouting, answers, late, options),
  ];
}

/** Where the source changes: after network policy (110, 111), which must see the pod as the source. */
export const SPEAKER_HOOKS = {
  input: baseAt('filter', 'input', SPEAKER_PRIORITY.input),
  postrouting: baseAt('filter', 'postrouting', SPEAKER_PRIORITY.postrouting),
} as const;

/** Drops ICMP errors about packets of owned UDP ports, which no host expects. They look up `owned-addresses`. */
export function errorRules(family: IpFamily): RuleParts[] {
  const { source, destination, inSet } = rulePartsFor(family);
  const isError = [isIcmp(family), IS_INVALID];
  return [
    // An owner's errors about packets to its slice. They have the owner's address, also inside, so no client knows them.
    [...isError, isNoEchoReply(family), inSet([source], 'owned-addresses'), DROP],
    // A client's errors about packets of owners. No host has the VIP, so they would come back until their TTL is used up.
    [...isError, inSet([destination], 'service-range-ips'), DROP],
  ];
}

/**
 * Base chains for VIPs with loadBalancerSourceRanges. They come before the other chains of owned ports, which let
 * packets of owners pass to any VIP. Packets from other sources are tracked, and dropped in the filter chains.
 */
export function restrictedBaseChains(options: ChainOptions): NftChain[] {
  const { source, destination, protocol, port, inSet, verdictMapOfLastBits } = rulePartsFor(
    options.family,
  );
  const rules: RuleParts[] = [
    [
      protocolIs('UDP'),
      inSet([destination], 'owned-restricted-vips'),
      inSet([destination, protocol, port, source], 'allowed-ranges'),
      verdictMapOfLastBits(destination, LAST_BITS, 'owned-restricted'),
    ],
  ];
  const maps: MapName[] = ['owned-restricted-vips', 'owned-restricted'];
  const { inbound, outbound } = translationHooks(RAW - 1);
  return [
    baseChain('owned-restricted-prerouting', inbound, rules, maps, options),
    baseChain('owned-restricted-output', outbound, rules, maps, options),
  ];
}

/** @returns the hooks at which destinations change, before connection tracking. */
export function translationHooks(priority: number = RAW) {
  return {
    inbound: baseAt('filter', 'prerouting', priority),
    // Type route, so that the kernel looks up the route again after the destination has changed.
    outbound: baseAt('route', 'output', priority),
  };
}

/** A base chain that exists only while a Service has owned ports. */
export function baseChain(
  name: string,
  base: NftBaseChain,
  rules: RuleParts[],
  maps: MapName[],
  options: ChainOptions,
  jumpTargets: NftChain[] = [],
): NftChain {
  return memoized(name, options, () => ({
    base,
    rules,
    jumpTargets,
    maps,
  }));
}

/** The chains of one part for UDP packets to an address, from an address, and for the change of the source. */
interface PartChains {
  readonly destinations: NftChain;
  readonly restricted: NftChain;
  readonly sources: NftChain;
  readonly speakers: NftChain;
}

const partChainsByOptions = new WeakMap<ChainOptions, Map<number, PartChains>>();

/** The chains of a part, made once. */
export function partChains(part: number, options: ChainOptions): PartChains {
  const parts = getOrCreate(partChainsByOptions, options, () => new Map<number, PartChains>());
  return getOrCreate(parts, part, () => makePartChains(part, options));
}

function makePartChains(part: number, options: ChainOptions): PartChains {
  const { source, destination, sourcePort, port, inSet, notInSet, rewrite } = rulePartsFor(
    options.family,
  );
  const owners = sliceMap('udp-owners', part);
  const restricted = sliceMap('restricted-udp-owners', part);
  const vips = sliceMap('udp-owner-vips', part);
  const ownerPorts = sliceMap('udp-owner-ports', part);
  const udp = protocolIs('UDP');
  const chain = (name: string, rules: RuleParts[], maps: MapName[]): NftChain =>
    memoized(`${name}-${part}`, options, () => ({ rules, jumpTargets: [], maps }));
  const to = [destination, port];
  const from = [source, sourcePort];
  // Packets to a slice without owner, or to a VIP that does not let the sender in, are rejected or dropped.
  const isNotToVip = notInSet([destination], 'owned-vips');
  return {
    destinations: chain(
      'owned-destinations',
      [
        // nft accepts a port field only after a match on the protocol.
        [udp, rewrite('destination', to, owners), NOTRACK, ACCEPT],
        [udp, inSet(to, ownerPorts), NOTRACK, ACCEPT],
      ],
      [owners, ownerPorts],
    ),
    restricted: chain(
      'owned-restricted',
      [[udp, rewrite('destination', to, restricted), NOTRACK, ACCEPT]],
      [restricted],
    ),
    sources: chain(
      'owned-sources',
      [
        [udp, inSet(from, ownerPorts), isNotToVip, NOTRACK, ACCEPT],
        [udp, inSet(from, 'udp-vip-ports'), isNotToVip, NOTRACK, ACCEPT],
      ],
      [ownerPorts, 'udp-vip-ports', 'owned-vips'],
    ),
    speakers: chain('owned-speakers', [[udp, rewrite('source', from, vips)]], [vips]),
  };
}

/**
 * The chain that translates TCP and SCTP packets to the owner. Unless the owner is known to be on this node, clients other
 * than pods of this node are masqueraded, so that answers come back through this node.
 */
export function trackedChain(part: number, options: ChainOptions): NftChain {
  const owners = sliceMap('tracked-owners', part);
  const remote = sliceMap('remote-owners', part);
  return memoized(`owned-tracked-${part}`, options, () => {
    const { destination, protocol, port, dnat } = rulePartsFor(options.family);
    const to = [destination, protocol, port];
    const clients = nonPodClients(options);
    const mark = setMarkBit(options.masqueradeBit);
    const isClient: RulePart[] =
      clients === 'all' || clients === 'none' ? [] : [isPod(clients, false, options)];
    return {
      rules: [
        [protocolIs('UDP'), ACCEPT],
        [dnat(to, owners, true)],
        [...isClient, mark],
        [dnat(to, remote, true)],
      ],
      jumpTargets: [],
      maps: [owners, remote],
    };
  });
}

/**
 * The verdict about packets to a VIP with loadBalancerSourceRanges that no owner takes: rejected from sources that may use
 * the VIP, dropped from others.
 */
export function rejectAllowedChain(options: ChainOptions): NftChain {
  return memoized('owned-reject-allowed', options, () => {
    const { source, destination, protocol, port, inSet } = rulePartsFor(options.family);
    const isAllowed = inSet([destination, protocol, port, source], 'allowed-ranges');
    const rules = PROTOCOLS.map((each) => [protocolIs(each), isAllowed, goTo(REJECT_CHAIN)]);
    return { rules: [...rules, [DROP]], jumpTargets: [] };
  });
}
