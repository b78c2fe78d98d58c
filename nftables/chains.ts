/**
 * Dispatch chains: the targets of verdict map elements. Chains depend on the traffic policy, masquerade,
 * session affinity and number of endpoints, not on the Service: a hundred Services with three endpoints
 * each share one chain.
 */

import { getOrCreate } from '../api/collections.ts';
import type { HashInput } from '../api/load-balancing.ts';
import type { IpFamily } from '../api/objects.ts';
import { PROTOCOLS } from '../api/objects.ts';
import type { NftBaseChain } from '../netlink/nftables/types.ts';
import {
  goTo,
  IS_FROM_NODE,
  inputInterfaceIs,
  type KeyField,
  type LookupKey,
  protocolIs,
  type RulePart,
  type RuleParts,
  rulePartsFor,
  setMarkBit,
} from '../nft/rule.ts';
import type { RouteMatch } from '../services/route.ts';
import { CLIENT_SEED, SLOTS } from '../traffic/consistent-hash.ts';
import { type LocalDetector, nonPodClients, type TrafficOptions } from '../traffic/options.ts';
import type { Dispatch, EndpointPool } from '../traffic/plan.ts';
import { AFFINITY_MAP, allPortsAffinityMap, isOnDemand, type MapName } from './maps.ts';

/** Settings and the IP family that the rules of chains depend on. */
export interface ChainOptions extends TrafficOptions {
  /** Bit of the packet mark that requests masquerade, 0 to 31. */
  readonly masqueradeBit: number;
  /** Reject and count UDP and SCTP packets to node ports on the loopback address (KEP-6032). */
  readonly rejectsOnLocalhost: boolean;
  /** Established connections bypass the rules, see `flowtable.ts`. */
  readonly usesFlowtable: boolean;
}

/** A chain of table `portwide`. Equal names have equal rules. */
export interface NftChain {
  readonly name: string;
  /** Where a base chain is attached; undefined for a chain that is only jumped to. */
  readonly base?: NftBaseChain;
  readonly rules: readonly RuleParts[];
  /** Chains that the rules jump or go to. They must exist first. */
  readonly jumpTargets: readonly NftChain[];
  /** Affinity map that the rules refer to. It must exist first. */
  readonly affinity?: string;
  /** Maps that the rules refer to and that do not always exist (`isOnDemand`). They must exist first. */
  readonly maps?: readonly MapName[];
  /** Named counter that the rules refer to. It must exist first. */
  readonly counter?: string;
  /** The rules refer to the flowtable or its sets. They must exist first. */
  readonly usesFlowtable?: true;
}

/** The lookup key of endpoints: VIP, protocol and port; only VIP (all-ports and port-range Services); node port. */
export type LookupKind = 'port' | 'ip' | 'node-port';

/** A selection of one endpoint of a VIP or node port. */
export interface EndpointSelection {
  readonly kind: LookupKind;
  /** Number of endpoints, at least 1. */
  readonly count: number;
  /** Selects from the endpoints for traffic policy Local, which have their own index range. */
  readonly isLocal: boolean;
  /** Position of a port-range Service among the port-range Services of one VIP, from 1; 0 for all other Services. */
  readonly slot: number;
  readonly hasAffinity: boolean;
  /** What of the client selects the endpoint; undefined: random. */
  readonly hash: HashInput | undefined;
}

/** Offsets of endpoint indexes on one VIP: each slot, and within it policy Local, has its own range. */
const LOCAL_INDEX = 2 ** 20;
const SLOT_INDEX = 2 ** 21;

/** The index of the first endpoint of a selection. */
export function firstEndpointIndex({
  isLocal,
  slot,
}: Pick<EndpointSelection, 'isLocal' | 'slot'>): number {
  return slot * SLOT_INDEX + (isLocal ? LOCAL_INDEX : 0);
}

/** Rejects packets; with `ChainOptions.resetsTcp` it resets established TCP connections. */
export const REJECT_CHAIN = 'reject-packet';
/**
 * Resets established TCP connections, and drops other packets. Only with `ChainOptions.resetsTcp`; otherwise elements
 * have the verdict `drop`.
 */
export const RESET_OR_DROP_CHAIN = 'reset-or-drop-packet';

/** Chains by options and name. Compiling the rules of a chain again for each Route took most of the compile time. */
const memoizedChains = new WeakMap<ChainOptions, Map<string, NftChain>>();

/** The chain of this name for the options, made once. */
export function memoized(
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

/** The fields of a selection that are equal for all endpoint pools of a VIP. */
type SelectionOrigin = Pick<EndpointSelection, 'kind' | 'slot' | 'hasAffinity' | 'hash'>;

/** The chain for a VIP or node port; undefined if no client has an endpoint. */
export function dispatchChain(
  { podsAndNode, others, masquerade }: Dispatch,
  origin: SelectionOrigin,
  options: ChainOptions,
): NftChain | undefined {
  const selection = selectionOf(others, origin);
  if (podsAndNode === undefined) return selection && selectionChain(selection, masquerade, options);
  const podsAndNodeSelection = selectionOf(podsAndNode, origin);
  if (selection === undefined && podsAndNodeSelection === undefined) return undefined;
  return localPolicyChain(podsAndNodeSelection, selection, options);
}

function selectionOf(
  { set, endpoints }: EndpointPool,
  origin: SelectionOrigin,
): EndpointSelection | undefined {
  const count = endpoints.length;
  if (count === 0) return undefined;
  const hash = isHashed(endpoints) ? origin.hash : undefined;
  return { ...origin, count, isLocal: set === 'local', hash };
}

/** Whether endpoints are selected by slots if clients are hashed: a single endpoint needs none. */
export function isHashed(endpoints: EndpointPool['endpoints']): boolean {
  return endpoints.length > 1;
}

const SELECTION_CHAIN_NAMES = {
  'non-pods': 'internal',
  all: 'external',
  node: 'select-endpoint',
} as const;

/**
 * A chain that selects an endpoint at random and translates to it (DNAT).
 * @param masquerade `node`: no mark is set here, because `localPolicyChain` marks the node's own packets.
 */
export function selectionChain(
  selection: EndpointSelection,
  masquerade: Dispatch['masquerade'],
  options: ChainOptions,
): NftChain {
  return memoized(
    `${SELECTION_CHAIN_NAMES[masquerade]}-${selectionName(selection)}`,
    options,
    () => {
      const { rules, ...rest } = selectionRules(selection, options.family);
      return {
        rules: [...masqueradeRules(masquerade, options), ...rules],
        ...rest,
        jumpTargets: [],
      };
    },
  );
}

/**
 * A chain for externalTrafficPolicy Local. Pods and the node itself use the cluster endpoints. Pods keep
 * their source address; traffic of the node is masqueraded, because its source may be the VIP.
 */
export function localPolicyChain(
  cluster: EndpointSelection | undefined,
  local: EndpointSelection | undefined,
  options: ChainOptions,
): NftChain {
  const names = [cluster, local].map((selection) =>
    selection ? selectionName(selection) : 'none',
  );
  return memoized(`external-local-${names.join('-')}`, options, () => {
    const clusterChain = cluster && selectionChain(cluster, 'node', options);
    const { localDetector } = options;
    const { rules, ...rest } = local ? selectionRules(local, options.family) : { rules: [] };
    return {
      rules: [
        ...(clusterChain && localDetector
          ? [[isPod(localDetector, true, options), goTo(clusterChain.name)]]
          : []),
        ...(clusterChain
          ? [[IS_FROM_NODE, setMarkBit(options.masqueradeBit), goTo(clusterChain.name)]]
          : []),
        ...rules,
      ],
      jumpTargets: clusterChain ? [clusterChain] : [],
      ...rest,
    };
  });
}

/**
 * A chain that passes only packets from sources in loadBalancerSourceRanges to `chain`. Other packets are not
 * translated, and the no-endpoint maps drop them in the filter chains.
 */
export function sourceRangesChain(
  chain: NftChain,
  by: SourceRangesKind,
  slot: number,
  options: ChainOptions,
): NftChain {
  const name = by === 'ranges' ? `ranges-slot${slot}` : by;
  return memoized(`firewall-${name}-${chain.name}`, options, () => {
    const { source, destination, randomIndex, inSet } = rulePartsFor(options.family);
    const set = SOURCE_RANGE_SETS[by];
    const isByPort = by === 'port' || by === 'slices';
    const key = isByPort ? keyOf('port', options.family) : [destination, randomIndex(1, slot)];
    return {
      rules: [[inSet([...key, source], set), goTo(chain.name)]],
      jumpTargets: [chain],
      ...(isOnDemand(set) && { maps: [set] }),
    };
  });
}

/** What a source is allowed for: a port, the ranges or all ports of a Service, or the ports that pods own. */
export type SourceRangesKind = RouteMatch['kind'] | 'slices';

/** The sets of allowed sources (loadBalancerSourceRanges). */
export const SOURCE_RANGE_SETS: Readonly<Record<SourceRangesKind, MapName>> = {
  port: 'allowed-port-sources',
  ranges: 'allowed-vip-sources',
  slices: 'allowed-ranges',
  all: 'allowed-vip-sources',
};

/** A chain that adds or refreshes the affinity entry of a connection's client. */
export function affinityUpdateChain(
  kind: LookupKind,
  slot: number,
  seconds: number,
  options: ChainOptions,
): NftChain {
  const affinity = affinityMapOf(kind, slot);
  return memoized(`update-${affinity}-${seconds}`, options, () => {
    const parts = rulePartsFor(options.family);
    const client = [parts.source, parts.originalVip];
    const withPort = [...client, parts.protocol, parts.originalPort];
    const rules: RuleParts[] =
      kind === 'ip'
        ? [[parts.updateMap(affinity, client, [parts.endpoint], seconds)]]
        : PROTOCOLS.map((protocol) => [
            // nft accepts a port field only after a match on the protocol.
            protocolIs(protocol),
            parts.updateMap(affinity, withPort, [parts.endpoint, parts.endpointPort], seconds),
          ]);
    return { rules, jumpTargets: [], affinity };
  });
}

/** The chain, preceded by all chains that it jumps to directly or indirectly. */
export function withJumpTargets(chain: NftChain): NftChain[] {
  return [...chain.jumpTargets.flatMap(withJumpTargets), chain];
}

function affinityMapOf(kind: LookupKind, slot: number): string {
  return kind === 'ip' ? allPortsAffinityMap(slot) : AFFINITY_MAP;
}

const HASH_NAMES = {
  'client-address': 'hash-client',
  'client-address-and-port': 'hash-client-port',
} as const satisfies Readonly<Record<HashInput, string>>;

function selectionName({
  kind,
  count,
  isLocal,
  slot,
  hasAffinity,
  hash,
}: EndpointSelection): string {
  const parts = [
    kind,
    // All hashed selections have the same number of slots.
    hash === undefined ? count : HASH_NAMES[hash],
    isLocal && 'local',
    slot > 0 && `slot${slot}`,
    hasAffinity && 'affinity',
  ];
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
 * Rules that translate to the endpoint of the client's affinity entry, otherwise to a random endpoint or, with consistent
 * hashing, to the endpoint of the client's slot.
 *
 * Each lookup is atomic, but a packet performs several, and a transaction can land between them. The
 * packet may then select an index past the end of the shrunken list. The last rule falls back to the
 * first index, which exists while any endpoint does.
 */
function selectionRules(
  selection: EndpointSelection,
  family: IpFamily,
): Pick<NftChain, 'rules' | 'affinity'> {
  const { kind, count, slot, hasAffinity, hash } = selection;
  const { source, sourcePort, destination, protocol, port, randomIndex, hashIndex, dnat } =
    rulePartsFor(family);
  const isPortKept = kind === 'ip';
  const first = firstEndpointIndex(selection);
  const select = (index: KeyField) => [
    dnat([...keyOf(kind, family), index], ENDPOINTS[kind], isPortKept),
  ];
  const hashed = hash === 'client-address' ? [source] : [source, sourcePort];
  const index =
    hash === undefined ? randomIndex(count, first) : hashIndex(hashed, SLOTS, CLIENT_SEED, first);
  const fallback = select(randomIndex(1, first));
  const rules = count > 1 ? [select(index), fallback] : [fallback];
  if (!hasAffinity) return { rules };
  const affinity = affinityMapOf(kind, slot);
  const client = [source, destination, ...(isPortKept ? [] : [protocol, port])];
  return { rules: [[dnat(client, affinity, isPortKept)], ...rules], affinity };
}

function masqueradeRules(masquerade: Dispatch['masquerade'], options: ChainOptions): RuleParts[] {
  if (masquerade === 'node') return [];
  const mark = setMarkBit(options.masqueradeBit);
  const clients = masquerade === 'non-pods' ? nonPodClients(options) : masquerade;
  if (clients === 'none') return [];
  return clients === 'all' ? [[mark]] : [[isPod(clients, false, options), mark]];
}

/** Matches packets from pods of this node, or with `is` false all other packets. */
export function isPod(detector: LocalDetector, is: boolean, { family }: ChainOptions): RulePart {
  if (detector.kind === 'cidr') return rulePartsFor(family).sourceIs(detector.cidr, !is);
  // iptables marks an interface prefix with a plus, nft with an asterisk.
  return inputInterfaceIs(detector.name.replace(/\+$/, '*'), !is);
}
