/**
 * A TrafficPlan to its elements, see `skeleton.ts` for what packets make of them. All-ports plans differ
 * in that no key and no DNAT has a port, so that the packet keeps its own.
 */
import { cidrContains } from '../api/addresses.ts';
import { addressBytes } from '../netlink/core/address.ts';
import type { NftElement, NftVerdict } from '../netlink/nftables/types.ts';
import type { Match } from '../services/route.ts';
import {
  needsHairpin,
  type TrafficPlan,
  type Treatment,
  type Verdict,
  type VipPlan,
} from '../traffic/plan.ts';
import {
  ALLOWED,
  allowedChain,
  type Chain,
  type ChainOptions,
  firstIndex,
  type LookupKind,
  REJECT,
  RESET_OR_DROP,
  rememberChain,
  treatmentChain,
} from './chains.ts';
import type { Element } from './element.ts';
import { cidrBounds, hostCidr, numberedEndpoints, portField, portKey } from './keys.ts';
import type { MapName } from './maps.ts';

/** What of the others on a VIP the elements of a Route depend on. */
export interface Place {
  /** See `Choice.slot`. */
  readonly slot: number;
  /** An all-ports Service is beside it. */
  readonly isBesideAllPorts: boolean;
}

const ALONE: Place = { slot: 0, isBesideAllPorts: false };

const ACCEPT: NftVerdict = { kind: 'accept' };
const DROP: NftVerdict = { kind: 'drop' };

/** Elements, and the chains that they lead to. Equal input gives equal output, in equal order. */
export interface Compiled {
  readonly elements: readonly Element[];
  readonly chains: readonly Chain[];
}

export const NOTHING: Compiled = { elements: [], chains: [] };

/** @param places by VIP, of those that are not alone there. */
export function compilePlan(
  plan: TrafficPlan,
  places: ReadonlyMap<string, Place>,
  options: ChainOptions,
): Compiled {
  const { match, affinitySeconds, nodePort } = plan;
  const isSticky = affinitySeconds > 0;
  const elements: Element[] = [];
  const chains: Chain[] = [];
  const add = (map: MapName, element: NftElement) => elements.push({ map, ...element });
  const goTo = (chain: Chain | undefined): NftVerdict => {
    if (chain === undefined) return ACCEPT;
    chains.push(chain);
    return { kind: 'goto', chain: chain.name };
  };
  const sticky = (kind: LookupKind, slot: number, isBeside: boolean): NftVerdict | undefined => {
    if (isSticky) return goTo(rememberChain(kind, slot, affinitySeconds, options));
    return isBeside ? ACCEPT : undefined;
  };
  const addEndpoints = (map: MapName, key: Buffer, slot: number, { inside, others }: Treatment) => {
    for (const { set, endpoints } of inside === undefined ? [others] : [inside, others]) {
      const first = firstIndex({ isLocal: set === 'local', slot });
      for (const element of numberedEndpoints(key, first, endpoints)) add(map, element);
      for (const endpoint of endpoints) {
        if (!needsHairpin(plan, endpoint)) continue;
        const bytes = addressBytes(endpoint.address);
        add('hairpins', { key: Buffer.concat([bytes, bytes]) });
      }
    }
  };

  const addVip = ({ vip, treatment, sources }: VipPlan) => {
    const address = addressBytes(vip);
    const { slot, isBesideAllPorts } = places.get(vip) ?? ALONE;
    const kind = match.kind === 'port' ? 'port' : 'ip';
    const served = treatmentChain(treatment, { kind, slot, isSticky }, options);
    const chain = goTo(served && sources ? allowedChain(served, match.kind, options) : served);
    // Whoever is not let in stays untranslated, too.
    const verdict = sources ? DROP : nftVerdict(treatment.verdict, options);
    const remember = sticky(kind, slot, isBesideAllPorts && match.kind !== 'all');
    if (match.kind === 'all') {
      add('service-ips', { key: address, data: chain });
      if (verdict) add('ip-fates', { key: address, data: verdict });
      if (remember) add('sticky-ips', { key: address, data: remember });
    } else if (match.kind === 'ranges') {
      for (const { protocol, from, to } of match.ranges) {
        const key = Buffer.concat([address, portKey(protocol, from)]);
        const keyEnd = Buffer.concat([address, portKey(protocol, to)]);
        add('service-ranges', { key, keyEnd, data: chain });
        if (verdict) add('range-fates', { key, keyEnd, data: verdict });
        if (remember) add('sticky-ranges', { key, keyEnd, data: remember });
      }
      add('ranged-ips', { key: address });
    } else {
      const key = Buffer.concat([address, portKey(match.protocol, match.port)]);
      add('service-ports', { key, data: chain });
      if (verdict) add('port-fates', { key, data: verdict });
      if (remember) add('sticky-ports', { key, data: remember });
      addEndpoints('endpoints', key, 0, treatment);
      return;
    }
    addEndpoints('endpoint-ips', address, slot, treatment);
  };

  for (const each of plan.vips) {
    addVip(each);
    const { vip, kind, sources, healthPort } = each;
    if (kind === 'cluster IP' && match.kind === 'port') {
      add('cluster-ips', { key: addressBytes(vip) });
    }
    const { ranges, ownVips } = sources ?? { ranges: [], ownVips: [] };
    for (const cidr of outermost([...ranges, ...ownVips.map(hostCidr)])) {
      for (const element of allowedElements(vip, match, cidr)) elements.push(element);
    }
    if (healthPort > 0) {
      add('health-ports', { key: Buffer.concat([addressBytes(vip), portField(healthPort)]) });
    }
  }
  if (nodePort !== undefined) {
    const { protocol, port, treatment } = nodePort;
    const key = portKey(protocol, port);
    const chain = treatmentChain(treatment, { kind: 'node-port', slot: 0, isSticky }, options);
    if (chain) add('node-ports', { key, data: goTo(chain) });
    const verdict = nftVerdict(treatment.verdict, options);
    if (verdict) add('node-port-fates', { key, data: verdict });
    const remember = sticky('node-port', 0, false);
    if (remember) add('sticky-node-ports', { key, data: remember });
    addEndpoints('node-port-endpoints', key, 0, treatment);
  }
  return { elements, chains };
}

function nftVerdict(
  verdict: Verdict | undefined,
  { resetsTcp }: ChainOptions,
): NftVerdict | undefined {
  if (verdict === 'reject') return { kind: 'goto', chain: REJECT };
  if (verdict === undefined || !resetsTcp) return verdict && DROP;
  return { kind: 'goto', chain: RESET_OR_DROP };
}

/** Ranges in a set may not overlap. */
function outermost(cidrs: readonly string[]): string[] {
  const unique = [...new Set(cidrs)];
  const [bits, host] = [
    (cidr: string) => Number(cidr.split('/')[1]),
    (cidr: string) => cidr.split('/')[0] ?? '',
  ];
  return unique.filter(
    (cidr) => !unique.some((other) => bits(other) < bits(cidr) && cidrContains(other, host(cidr))),
  );
}

function allowedElements(vip: string, match: Match, cidr: string): Element[] {
  const address = addressBytes(vip);
  const [first, last] = cidrBounds(cidr);
  if (match.kind === 'all') {
    const key = Buffer.concat([address, first]);
    return [{ map: ALLOWED.all, key, keyEnd: Buffer.concat([address, last]) }];
  }
  const ranges =
    match.kind === 'ranges'
      ? match.ranges
      : [{ protocol: match.protocol, from: match.port, to: match.port }];
  return ranges.map(({ protocol, from, to }) => ({
    map: ALLOWED[match.kind],
    key: Buffer.concat([address, portKey(protocol, from), first]),
    keyEnd: Buffer.concat([address, portKey(protocol, to), last]),
  }));
}
