/**
 * A TrafficPlan to its elements, see `static-chains.ts` for what packets make of them. All-ports plans differ
 * in that no key and no DNAT has a port, so that the packet keeps its own.
 */

import { cidrContains } from '../api/addresses.ts';
import type { Protocol } from '../api/objects.ts';
import { addressBytes } from '../netlink/core/address.ts';
import type { NftElement, NftVerdict } from '../netlink/nftables/types.ts';
import { cidrBounds, hostCidr, portField, portKey } from '../nft/keys.ts';
import type { RouteMatch } from '../services/route.ts';
import {
  type Dispatch,
  needsHairpin,
  type TrafficPlan,
  type UntranslatedVerdict,
} from '../traffic/plan.ts';
import {
  affinityUpdateChain,
  type ChainOptions,
  dispatchChain,
  firstIndex,
  type LookupKind,
  type NftChain,
  REJECT_CHAIN,
  RESET_OR_DROP_CHAIN,
  SOURCE_RANGE_SETS,
  sourceRangesChain,
} from './chains.ts';
import type { MapElement } from './element.ts';
import { endpointElements } from './keys.ts';
import { localhostRejectElement } from './localhost.ts';
import type { MapName } from './maps.ts';

/** What of the others on a VIP the elements of a Route depend on. */
export interface VipSharing {
  /** See `Choice.slot`. */
  readonly slot: number;
  /** An all-ports Service is beside it. */
  readonly sharesWithAllPorts: boolean;
}

const NOT_SHARED: VipSharing = { slot: 0, sharesWithAllPorts: false };

const ACCEPT: NftVerdict = { kind: 'accept' };
const DROP: NftVerdict = { kind: 'drop' };

/** Elements, and the chains that they lead to. Equal input gives equal output, in equal order. */
export interface CompiledNftPlan {
  readonly elements: readonly MapElement[];
  readonly chains: readonly NftChain[];
}

export const EMPTY_NFT_PLAN: CompiledNftPlan = { elements: [], chains: [] };

/** The maps that packets are looked up in: for what translates them, for who was served by whom, and if nobody translated. */
const LOOKUPS = {
  port: { services: 'service-ports', sticky: 'sticky-ports', verdicts: 'port-fates' },
  ranges: { services: 'service-ranges', sticky: 'sticky-ranges', verdicts: 'range-fates' },
  all: { services: 'service-ips', sticky: 'sticky-ips', verdicts: 'ip-fates' },
  'node-port': {
    services: 'node-ports',
    sticky: 'sticky-node-ports',
    verdicts: 'node-port-fates',
  },
} as const satisfies Readonly<Record<string, Readonly<Record<string, MapName>>>>;

/** @param sharing by VIP, of those that are not alone there. */
export function compileNftPlan(
  plan: TrafficPlan,
  sharing: ReadonlyMap<string, VipSharing>,
  options: ChainOptions,
): CompiledNftPlan {
  const { match, affinitySeconds, nodePort } = plan;
  const isSticky = affinitySeconds > 0;
  const elements: MapElement[] = [];
  const chains: NftChain[] = [];
  const add = (map: MapName, element: NftElement, data?: NftVerdict) =>
    elements.push(data === undefined ? { map, ...element } : { map, ...element, data });
  const goTo = (chain: NftChain): NftVerdict => {
    chains.push(chain);
    return { kind: 'goto', chain: chain.name };
  };
  const sticky = (kind: LookupKind, slot: number, isBeside: boolean): NftVerdict | undefined => {
    if (isSticky) return goTo(affinityUpdateChain(kind, slot, affinitySeconds, options));
    return isBeside ? ACCEPT : undefined;
  };
  const addLookups = (
    by: keyof typeof LOOKUPS,
    keys: readonly NftElement[],
    chain: NftVerdict | undefined,
    verdict: NftVerdict | undefined,
    remember: NftVerdict | undefined,
  ) => {
    const maps = LOOKUPS[by];
    for (const key of keys) {
      if (chain) add(maps.services, key, chain);
      if (verdict) add(maps.verdicts, key, verdict);
      if (remember) add(maps.sticky, key, remember);
    }
  };
  const addEndpoints = (
    map: MapName,
    key: Buffer,
    slot: number,
    { podsAndNode, others }: Dispatch,
  ) => {
    for (const { set, endpoints } of podsAndNode === undefined ? [others] : [podsAndNode, others]) {
      const first = firstIndex({ isLocal: set === 'local', slot });
      for (const element of endpointElements(key, first, endpoints)) add(map, element);
      for (const endpoint of endpoints) {
        if (!needsHairpin(plan, endpoint)) continue;
        const bytes = addressBytes(endpoint.address);
        add('hairpins', { key: Buffer.concat([bytes, bytes]) });
      }
    }
  };

  for (const { vip, kind, dispatch: treatment, sources, healthCheckPort } of plan.vips) {
    const address = addressBytes(vip);
    const { slot, sharesWithAllPorts } = sharing.get(vip) ?? NOT_SHARED;
    const by = match.kind === 'port' ? 'port' : 'ip';
    const keys = keysOf(address, match);
    const served = dispatchChain(treatment, { kind: by, slot, isSticky }, options);
    const chain = served && sources ? sourceRangesChain(served, match.kind, options) : served;
    // Whoever is not let in stays untranslated, too.
    const verdict = sources ? DROP : nftVerdict(treatment.untranslatedVerdict, options);
    addLookups(
      match.kind,
      keys,
      chain ? goTo(chain) : ACCEPT,
      verdict,
      sticky(by, slot, sharesWithAllPorts && match.kind !== 'all'),
    );
    if (match.kind === 'ranges') add('ranged-ips', { key: address });
    if (match.kind !== 'port') addEndpoints('endpoint-ips', address, slot, treatment);
    else for (const { key } of keys) addEndpoints('endpoints', key, slot, treatment);
    if (kind === 'cluster IP' && match.kind === 'port') add('cluster-ips', { key: address });
    const { ranges, ownVips } = sources ?? { ranges: [], ownVips: [] };
    for (const cidr of outermost([...ranges, ...ownVips.map(hostCidr)])) {
      const [first, last] = cidrBounds(cidr);
      for (const { key, keyEnd = key } of keys) {
        add(SOURCE_RANGE_SETS[match.kind], {
          key: Buffer.concat([key, first]),
          keyEnd: Buffer.concat([keyEnd, last]),
        });
      }
    }
    if (healthCheckPort > 0) {
      add('health-ports', { key: Buffer.concat([address, portField(healthCheckPort)]) });
    }
  }
  if (nodePort !== undefined) {
    const { protocol, port, dispatch: treatment } = nodePort;
    const key = portKey(protocol, port);
    const chain = dispatchChain(treatment, { kind: 'node-port', slot: 0, isSticky }, options);
    const verdict = nftVerdict(treatment.untranslatedVerdict, options);
    const translation = chain && goTo(chain);
    addLookups('node-port', [{ key }], translation, verdict, sticky('node-port', 0, false));
    addEndpoints('node-port-endpoints', key, 0, treatment);
    const reject = options.rejectsOnLocalhost && localhostRejectElement(plan.family, nodePort);
    if (reject) elements.push(reject);
  }
  return { elements, chains };
}

/** What packets to a VIP are looked up by. */
function keysOf(address: Buffer, match: RouteMatch): NftElement[] {
  if (match.kind === 'all') return [{ key: address }];
  const keyOf = (protocol: Protocol, port: number) =>
    Buffer.concat([address, portKey(protocol, port)]);
  if (match.kind === 'port') return [{ key: keyOf(match.protocol, match.port) }];
  return match.ranges.map(({ protocol, from, to }) => ({
    key: keyOf(protocol, from),
    keyEnd: keyOf(protocol, to),
  }));
}

function nftVerdict(
  verdict: UntranslatedVerdict | undefined,
  { resetsTcp }: ChainOptions,
): NftVerdict | undefined {
  if (verdict === 'reject') return { kind: 'goto', chain: REJECT_CHAIN };
  if (verdict === undefined || !resetsTcp) return verdict && DROP;
  return { kind: 'goto', chain: RESET_OR_DROP_CHAIN };
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
