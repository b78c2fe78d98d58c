/**
 * Compiles a TrafficPlan to map elements and dispatch chains; `static-chains.ts` shows the path of a packet through the
 * chains. Endpoint keys and DNAT of all-ports and port-range plans have no port, so that the packet keeps its
 * destination port.
 */
import { finish, type Steps } from '../api/steps.ts';
import type { Endpoint } from '../endpoints/select.ts';
import { addressBytes } from '../netlink/core/address.ts';
import type { NftElement, NftVerdict } from '../netlink/nftables/types.ts';
import { portField, portKey } from '../nft/keys.ts';
import type { RouteMatch } from '../services/route.ts';
import { slotTableSteps } from '../traffic/consistent-hash.ts';
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
  firstEndpointIndex,
  isHashed,
  type LookupKind,
  type NftChain,
  REJECT_CHAIN,
  RESET_OR_DROP_CHAIN,
  SOURCE_RANGE_SETS,
  sourceRangesChain,
} from './chains.ts';
import { compileOwnedSteps } from './compile-owned.ts';
import { compileRanges, notShared } from './compile-ranges.ts';
import type { MapElement } from './element.ts';
import { flowtableElements } from './flowtable.ts';
import { allowedSourceElements, endpointElements, slotKey } from './keys.ts';
import { localhostRejectElement } from './localhost.ts';
import type { MapName } from './maps.ts';

/** How a Route shares one VIP with other Routes, as far as the elements of the Route depend on the sharing. */
export interface VipSharing {
  /** See `EndpointSelection.slot`. */
  readonly slot: number;
  /** Another Service has all ports or port ranges of the VIP. */
  readonly sharesWithAllPorts: boolean;
  /** For the Route that leads packets to the ranges of all Services of the VIP: the last slot of the VIP. */
  readonly lastSlot?: number | undefined;
}

const ACCEPT: NftVerdict = { kind: 'accept' };
const DROP: NftVerdict = { kind: 'drop' };

/** Elements, and the chains that they go to. Equal input gives equal output, in equal order. */
export interface CompiledNftPlan {
  readonly elements: readonly MapElement[];
  readonly chains: readonly NftChain[];
}

/** The plan of a Route that does not exist. */
export const EMPTY_NFT_PLAN: CompiledNftPlan = { elements: [], chains: [] };

/** The dispatch maps by match: for translation, for affinity updates, and for packets that were not translated. */
const LOOKUPS = {
  port: {
    services: 'service-ports',
    affinityUpdates: 'affinity-update-ports',
    verdicts: 'no-endpoint-ports',
  },
  ranges: {
    services: 'range-services',
    affinityUpdates: 'affinity-update-range-services',
    verdicts: 'no-endpoint-range-services',
  },
  all: {
    services: 'service-ips',
    affinityUpdates: 'affinity-update-ips',
    verdicts: 'no-endpoint-ips',
  },
  'node-port': {
    services: 'node-ports',
    affinityUpdates: 'affinity-update-node-ports',
    verdicts: 'no-endpoint-node-ports',
  },
} as const satisfies Readonly<Record<string, Readonly<Record<string, MapName>>>>;

/**
 * Compiles the plan of one Route.
 * @param sharing by VIP; VIPs that are not shared may be missing.
 */
export function compileNftPlan(
  plan: TrafficPlan,
  sharing: ReadonlyMap<string, VipSharing>,
  options: ChainOptions,
): CompiledNftPlan {
  return finish(compileSteps(plan, sharing, options));
}

/** As `compileNftPlan`, in steps: a Service may have 65,535 slices of owned ports, or many hashed endpoints. */
export function* compileSteps(
  plan: TrafficPlan,
  sharing: ReadonlyMap<string, VipSharing>,
  options: ChainOptions,
): Steps<CompiledNftPlan> {
  if (plan.owned !== undefined) return yield* compileOwnedSteps(plan, plan.owned, sharing, options);
  const { match, affinitySeconds, consistentHash: hash, nodePort } = plan;
  const hasAffinity = affinitySeconds > 0;
  const elements: MapElement[] = [];
  const chains: NftChain[] = [];
  const add = (map: MapName, element: NftElement, data?: NftVerdict) =>
    elements.push(data === undefined ? { map, ...element } : { map, ...element, data });
  const goTo = (chain: NftChain): NftVerdict => {
    chains.push(chain);
    return { kind: 'goto', chain: chain.name };
  };
  const affinityUpdateFor = (
    kind: LookupKind,
    slot: number,
    sharesWithAllPorts: boolean,
  ): NftVerdict | undefined => {
    if (hasAffinity) return goTo(affinityUpdateChain(kind, slot, affinitySeconds, options));
    return sharesWithAllPorts ? ACCEPT : undefined;
  };
  const addLookups = (
    by: keyof typeof LOOKUPS,
    element: NftElement,
    chain: NftVerdict | undefined,
    verdict: NftVerdict | undefined,
    affinityUpdate: NftVerdict | undefined,
  ) => {
    const maps = LOOKUPS[by];
    if (chain) add(maps.services, element, chain);
    if (verdict) add(maps.verdicts, element, verdict);
    if (affinityUpdate) add(maps.affinityUpdates, element, affinityUpdate);
  };
  const tables = new Map<readonly Endpoint[], readonly Endpoint[]>();
  /** The endpoints by index: once, or in their slots. */
  function* indexed(endpoints: readonly Endpoint[]): Steps<readonly Endpoint[]> {
    if (hash === undefined || !isHashed(endpoints)) return endpoints;
    const table = tables.get(endpoints) ?? (yield* slotTableSteps(plan.serviceKey, endpoints));
    tables.set(endpoints, table);
    return table;
  }
  function* addEndpoints(
    map: MapName,
    key: Buffer,
    slot: number,
    { podsAndNode, others }: Dispatch,
  ): Steps<void> {
    for (const { set, endpoints } of podsAndNode === undefined ? [others] : [podsAndNode, others]) {
      const first = firstEndpointIndex({ isLocal: set === 'local', slot });
      const table = yield* indexed(endpoints);
      for (const element of endpointElements(key, first, table)) add(map, element);
      for (const endpoint of endpoints) {
        if (!needsHairpin(plan, endpoint)) continue;
        const bytes = addressBytes(endpoint.address);
        add('hairpin-connections', { key: Buffer.concat([bytes, bytes]) });
      }
    }
  }

  for (const { vip, kind, dispatch, sources, healthCheckPort } of plan.vips) {
    if (hash !== undefined) yield undefined;
    const address = addressBytes(vip);
    const shared = sharing.get(vip) ?? notShared(match.kind);
    const { slot, sharesWithAllPorts } = shared;
    const by = match.kind === 'port' ? 'port' : 'ip';
    const key = keyOf(address, slot, match);
    const served = dispatchChain(dispatch, { kind: by, slot, hasAffinity, hash }, options);
    const chain = served && sources ? sourceRangesChain(served, match.kind, slot, options) : served;
    // The chain does not translate packets from sources outside the source ranges: this verdict drops them.
    const verdict = sources ? DROP : nftVerdict(dispatch.untranslatedVerdict, options);
    addLookups(
      match.kind,
      { key },
      chain ? goTo(chain) : ACCEPT,
      verdict,
      affinityUpdateFor(by, slot, sharesWithAllPorts && match.kind !== 'all'),
    );
    if (match.kind === 'ranges') {
      const compiled = compileRanges(address, match.ranges, shared, hasAffinity, options);
      elements.push(...compiled.elements);
      chains.push(...compiled.chains);
    }
    if (match.kind !== 'port') yield* addEndpoints('endpoint-ips', address, slot, dispatch);
    else yield* addEndpoints('endpoints', key, slot, dispatch);
    if (kind === 'cluster IP' && match.kind === 'port') add('cluster-ips', { key: address });
    if (sources) {
      const allowed = { key: match.kind === 'all' ? slotKey(address, slot) : key };
      elements.push(...allowedSourceElements(SOURCE_RANGE_SETS[match.kind], [allowed], sources));
    }
    if (healthCheckPort > 0) {
      add('health-check-node-ports', { key: Buffer.concat([address, portField(healthCheckPort)]) });
    }
  }
  if (nodePort !== undefined) {
    const { protocol, port, dispatch } = nodePort;
    const key = portKey(protocol, port);
    const chain = dispatchChain(
      dispatch,
      { kind: 'node-port', slot: 0, hasAffinity, hash },
      options,
    );
    const verdict = nftVerdict(dispatch.untranslatedVerdict, options);
    const dispatchVerdict = chain && goTo(chain);
    addLookups(
      'node-port',
      { key },
      dispatchVerdict,
      verdict,
      affinityUpdateFor('node-port', 0, false),
    );
    yield* addEndpoints('node-port-endpoints', key, 0, dispatch);
    const reject = options.rejectsOnLocalhost && localhostRejectElement(plan.family, nodePort);
    if (reject) elements.push(reject);
  }
  if (options.usesFlowtable) elements.push(...flowtableElements(plan));
  return { elements, chains };
}

/** The key of the dispatch elements of a VIP. */
function keyOf(address: Buffer, slot: number, match: RouteMatch): Buffer {
  if (match.kind === 'all') return address;
  if (match.kind === 'ranges') return slotKey(address, slot);
  return Buffer.concat([address, portKey(match.protocol, match.port)]);
}

function nftVerdict(
  verdict: UntranslatedVerdict | undefined,
  { resetsTcp }: ChainOptions,
): NftVerdict | undefined {
  if (verdict === 'reject') return { kind: 'goto', chain: REJECT_CHAIN };
  if (verdict === undefined || !resetsTcp) return verdict && DROP;
  return { kind: 'goto', chain: RESET_OR_DROP_CHAIN };
}
