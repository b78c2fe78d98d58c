/**
 * The chains that elements of the maps lead to. There is one for each way that packets may be
 * treated, the number of endpoints included, and none for a Service: a hundred Services with three
 * endpoints each share a chain.
 */

import { getOrCreate } from '../api/collections.ts';
import type { IpFamily } from '../api/objects.ts';
import { PROTOCOLS } from '../api/objects.ts';
import {
  goTo,
  IS_FROM_NODE,
  inputInterfaceIs,
  type LookupKey,
  protocolIs,
  type RulePart,
  type RuleParts,
  rulePartsFor,
  setMarkBit,
} from '../nft/rule.ts';
import type { RouteMatch } from '../services/route.ts';
import { type LocalDetector, nonPodClients, type TrafficOptions } from '../traffic/options.ts';
import type { Dispatch, EndpointPool } from '../traffic/plan.ts';
import { AFFINITY_MAP, allPortsAffinityMap, type MapName } from './maps.ts';

/** What chains depend on besides Services. */
export interface ChainOptions extends TrafficOptions {
  /** 0 to 31. */
  readonly masqueradeBit: number;
  /** UDP and SCTP packets to node ports on the loopback address are rejected and counted. */
  readonly rejectsOnLocalhost: boolean;
}

/** A chain of table `portwide`. Equal names have equal rules. */
export interface NftChain {
  readonly name: string;
  /** What the kernel calls it for, as nft says it; undefined: other chains lead to it. */
  readonly hook?: string;
  readonly rules: readonly RuleParts[];
  /** Chains that its rules lead to. */
  readonly jumpTargets: readonly NftChain[];
  /** A map that its rules need, which packets write. */
  readonly affinity?: string;
  /** A counter of the table that its rules name. */
  readonly counter?: string;
}

/** By what an endpoint is looked up: VIP and port, VIP alone (all-ports), node port. */
export type LookupKind = 'port' | 'ip' | 'node-port';

/** Some endpoints of a VIP or node port, of which one is to be drawn. */
export interface EndpointSelection {
  readonly kind: LookupKind;
  /** At least 1. */
  readonly count: number;
  /** Those of traffic policy Local are numbered apart. */
  readonly isLocal: boolean;
  /** Tells all-ports Services apart that share a VIP; 0 but for ranges. */
  readonly slot: number;
  readonly isSticky: boolean;
}

/** Numbers of endpoints on one VIP: those of each slot, and of the Local policy, begin anew. */
const LOCAL_INDEX = 2 ** 20;
const SLOT_INDEX = 2 ** 21;

/** The number of the first of these endpoints. */
export function firstIndex({ isLocal, slot }: Pick<EndpointSelection, 'isLocal' | 'slot'>): number {
  return slot * SLOT_INDEX + (isLocal ? LOCAL_INDEX : 0);
}

export const REJECT_CHAIN = 'reject-packet';
/** Only with `ChainOptions.resetsTcp`; otherwise a plain verdict drops. */
export const RESET_OR_DROP_CHAIN = 'reset-or-drop-packet';

/** Chains by name, for those options: making rules anew for each Route took longer than all else. */
const memoizedChains = new WeakMap<ChainOptions, Map<string, NftChain>>();

function memoized(
  name: string,
  options: ChainOptions,
  make: () => Omit<NftChain, 'name'>,
): NftChain {
  let chains = memoizedChains.get(options);
  if (chains === undefined) {
    chains = new Map();
    memoizedChains.set(options, chains);
  }
  return getOrCreate(chains, name, () => ({ name, ...make() }));
}

/** Where packets come from that are to draw an endpoint. */
type SelectionOrigin = Pick<EndpointSelection, 'kind' | 'slot' | 'isSticky'>;

/** Treats clients as they are to be; undefined: none is served. */
export function dispatchChain(
  { podsAndNode, others, masquerade }: Dispatch,
  origin: SelectionOrigin,
  options: ChainOptions,
): NftChain | undefined {
  const choice = selectionOf(others, origin);
  if (podsAndNode === undefined) return choice && selectionChain(choice, masquerade, options);
  const insideChoice = selectionOf(podsAndNode, origin);
  if (choice === undefined && insideChoice === undefined) return undefined;
  return localPolicyChain(insideChoice, choice, options);
}

function selectionOf(
  { set, endpoints }: EndpointPool,
  origin: SelectionOrigin,
): EndpointSelection | undefined {
  const count = endpoints.length;
  return count === 0 ? undefined : { ...origin, count, isLocal: set === 'local' };
}

const SELECTION_CHAIN_NAMES = { foreign: 'internal', everybody: 'external', node: 'pick' } as const;

/**
 * Draws an endpoint.
 * @param masquerade `node`: the node's own packets were marked on their way here.
 */
export function selectionChain(
  choice: EndpointSelection,
  masquerade: Dispatch['masquerade'],
  options: ChainOptions,
): NftChain {
  return memoized(`${SELECTION_CHAIN_NAMES[masquerade]}-${selectionName(choice)}`, options, () => {
    const { rules, ...rest } = selectionRules(choice, options.family);
    return { rules: [...masqueradeRules(masquerade, options), ...rules], ...rest, jumpTargets: [] };
  });
}

/** Where those inside are served apart: pods keep their address, the node's own traffic cannot. */
export function localPolicyChain(
  cluster: EndpointSelection | undefined,
  local: EndpointSelection | undefined,
  options: ChainOptions,
): NftChain {
  const names = [cluster, local].map((choice) => (choice ? selectionName(choice) : 'none'));
  return memoized(`local-${names.join('-')}`, options, () => {
    const inside = cluster && selectionChain(cluster, 'node', options);
    const { localDetector } = options;
    const { rules, ...rest } = local ? selectionRules(local, options.family) : { rules: [] };
    return {
      rules: [
        ...(inside && localDetector
          ? [[isPod(localDetector, true, options), goTo(inside.name)]]
          : []),
        ...(inside ? [[IS_FROM_NODE, setMarkBit(options.masqueradeBit), goTo(inside.name)]] : []),
        ...rules,
      ],
      jumpTargets: inside ? [inside] : [],
      ...rest,
    };
  });
}

/** Lets on only who is inside the source ranges; the others stay untranslated. */
export function sourceRangesChain(
  chain: NftChain,
  by: RouteMatch['kind'],
  options: ChainOptions,
): NftChain {
  return memoized(`allowed-${by}-${chain.name}`, options, () => {
    const { source, inSet } = rulePartsFor(options.family);
    const key = [...keyOf(by === 'all' ? 'ip' : 'port', options.family), source];
    return { rules: [[inSet(key, SOURCE_RANGE_SETS[by]), goTo(chain.name)]], jumpTargets: [chain] };
  });
}

/** Where it stands who may use a VIP. */
export const SOURCE_RANGE_SETS: Readonly<Record<RouteMatch['kind'], MapName>> = {
  port: 'allowed-ports',
  ranges: 'allowed-ranges',
  all: 'allowed-ips',
};

/** Notes which endpoint serves a client, and that it was seen. */
export function affinityUpdateChain(
  kind: LookupKind,
  slot: number,
  seconds: number,
  options: ChainOptions,
): NftChain {
  const affinity = affinityMapOf(kind, slot);
  return memoized(`remember-${affinity}-${seconds}`, options, () => {
    const parts = rulePartsFor(options.family);
    const client = [parts.source, parts.originalVip];
    const withPort = [...client, parts.protocol, parts.originalPort];
    const rules: RuleParts[] =
      kind === 'ip'
        ? [[parts.updateMap(affinity, client, [parts.endpoint], seconds)]]
        : PROTOCOLS.map((protocol) => [
            // nft must know the protocol to know what a port is.
            protocolIs(protocol),
            parts.updateMap(affinity, withPort, [parts.endpoint, parts.endpointPort], seconds),
          ]);
    return { rules, jumpTargets: [], affinity };
  });
}

/**
 * Whether nft may be asked to write this chain's rules: 1.0.6 dies of those that note session
 * affinity with IPv6 ("Assertion dreg < ctx->reg_low").
 */
export function canNftWrite({ name }: NftChain): boolean {
  return !name.startsWith('remember-');
}

/** A chain, and all that it leads to, those first. */
export function withJumpTargets(chain: NftChain): NftChain[] {
  return [...chain.jumpTargets.flatMap(withJumpTargets), chain];
}

function affinityMapOf(kind: LookupKind, slot: number): string {
  return kind === 'ip' ? allPortsAffinityMap(slot) : AFFINITY_MAP;
}

function selectionName({ kind, count, isLocal, slot, isSticky }: EndpointSelection): string {
  const parts = [kind, count, isLocal && 'local', slot > 0 && `slot${slot}`, isSticky && 'sticky'];
  return parts.filter((part) => part !== false).join('-');
}

function keyOf(kind: LookupKind, family: IpFamily): LookupKey {
  const { destination, protocol, port } = rulePartsFor(family);
  if (kind === 'ip') return [destination];
  return kind === 'port' ? [destination, protocol, port] : [protocol, port];
}

const ENDPOINTS: Readonly<Record<LookupKind, MapName>> = {
  port: 'endpoints',
  ip: 'endpoint-ips',
  'node-port': 'node-port-endpoints',
};

/**
 * A transaction is one moment to each lookup, but not to a packet between two of them: it may have
 * been sent here when there were more endpoints than the next lookup finds. The first is there as
 * long as there is one.
 */
function selectionRules(
  choice: EndpointSelection,
  family: IpFamily,
): Pick<NftChain, 'rules' | 'affinity'> {
  const { kind, count, slot, isSticky } = choice;
  const { source, destination, protocol, port, lot: randomIndex, dnat } = rulePartsFor(family);
  const isPortKept = kind === 'ip';
  const drawn = (among: number) => {
    const key = [...keyOf(kind, family), randomIndex(among, firstIndex(choice))];
    return [dnat(key, ENDPOINTS[kind], isPortKept)];
  };
  const rules = count > 1 ? [drawn(count), drawn(1)] : [drawn(1)];
  if (!isSticky) return { rules };
  const affinity = affinityMapOf(kind, slot);
  const client = [source, destination, ...(isPortKept ? [] : [protocol, port])];
  return { rules: [[dnat(client, affinity, isPortKept)], ...rules], affinity };
}

function masqueradeRules(masquerade: Dispatch['masquerade'], options: ChainOptions): RuleParts[] {
  if (masquerade === 'node') return [];
  const marked = setMarkBit(options.masqueradeBit);
  const clients = masquerade === 'foreign' ? nonPodClients(options) : masquerade;
  if (clients === 'nobody') return [];
  return clients === 'everybody' ? [[marked]] : [[isPod(clients, false, options), marked]];
}

/** Packets of pods, or all others. */
function isPod(detector: LocalDetector, is: boolean, { family }: ChainOptions): RulePart {
  if (detector.kind === 'cidr') return rulePartsFor(family).sourceIs(detector.cidr, !is);
  // iptables ends a prefix in a plus, nft in an asterisk.
  return inputInterfaceIs(detector.name.replace(/\+$/, '*'), !is);
}
