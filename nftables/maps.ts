/**
 * The maps and sets of table `portwide`. Services differ in elements only; no chain or map belongs to one Service. A
 * chain or map costs the kernel memory and time, and each map costs more the more maps the table has. An element costs
 * almost nothing.
 */
import type { IpFamily } from '../api/objects.ts';
import { paddedLength } from '../netlink/nftables/set-description.ts';
import { type SetDeclaration, type SetField, setFields } from '../nft/declaration.ts';

/** A field of a key or of data. In the kernel each field takes a multiple of four bytes. */
export type MapField = 'address' | 'protocol' | 'port' | 'index';

/** The type of a map or set. */
export interface MapSpec {
  readonly key: readonly MapField[];
  /** Type of the data; undefined for a set. */
  readonly data?: 'verdict' | readonly MapField[];
  /** Elements are ranges of ports or of addresses. */
  readonly isInterval?: true;
  /**
   * The key as a whole is one number, and elements are ranges of it: only the last field can be a range. nft has no
   * words for such a map and shows its keys as numbers.
   */
  readonly isOrdered?: true;
  /** Maximum number of elements. With it the kernel takes a table of fixed size, which is faster. */
  readonly size?: number;
}

const SERVICE_PORT = ['address', 'protocol', 'port'] as const;

/** Maps that dispatch packets to VIPs and node ports, in lookup order: the precedence on one VIP. */
const DISPATCH = {
  /** `spec.healthCheckNodePort` on load balancer VIPs: the node itself answers (externalTrafficPolicy Local). */
  'health-check-node-ports': { key: ['address', 'port'] },
  'service-ports': { key: SERVICE_PORT, data: 'verdict' },
  /** The chain that looks up the ports of a VIP with port ranges, and the Services of the VIP by their slot. */
  'range-vips': { key: ['address'], data: 'verdict' },
  'range-services': { key: ['address', 'index'], data: 'verdict' },
  'service-ips': { key: ['address'], data: 'verdict' },
  'node-ports': { key: ['protocol', 'port'], data: 'verdict' },
} as const satisfies Readonly<Record<string, MapSpec>>;

/** Maps and sets that dispatch chains look up. */
const LOOKUP_MAPS = {
  /** Endpoints by VIP, protocol, port and a random index. */
  endpoints: { key: [...SERVICE_PORT, 'index'], data: ['address', 'port'] },
  /** Endpoints of all-ports and port-range Services by VIP and index; the packet keeps its destination port. */
  'endpoint-ips': { key: ['address', 'index'], data: ['address'] },
  'node-port-endpoints': { key: ['protocol', 'port', 'index'], data: ['address', 'port'] },
  /** Allowed sources of owned ports, see `SOURCE_SETS`. */
  'allowed-ranges': { key: [...SERVICE_PORT, 'address'], isInterval: true },
  /** Source and destination of connections from an endpoint to itself, which must be masqueraded. */
  'hairpin-connections': { key: ['address', 'address'] },
  /** Node addresses on which node ports are served. */
  'node-port-ips': { key: ['address'] },
} as const satisfies Readonly<Record<string, MapSpec>>;

/** VIPs and ports whose connections add or refresh a session affinity entry. */
const AFFINITY_DISPATCH = {
  'affinity-update-ports': { key: SERVICE_PORT, data: 'verdict' },
  'affinity-update-range-vips': { key: ['address'], data: 'verdict' },
  'affinity-update-range-services': { key: ['address', 'index'], data: 'verdict' },
  'affinity-update-ips': { key: ['address'], data: 'verdict' },
  'affinity-update-node-ports': { key: ['protocol', 'port'], data: 'verdict' },
} as const satisfies Readonly<Record<string, MapSpec>>;

/**
 * Verdicts for packets to VIPs and node ports that were not translated. Either the VIP has no endpoints, or
 * the source is outside loadBalancerSourceRanges. A packet to an all-ports or port-range VIP may also have
 * escaped translation.
 */
const NO_ENDPOINT_MAPS = {
  'no-endpoint-ports': { key: SERVICE_PORT, data: 'verdict' },
  'no-endpoint-range-vips': { key: ['address'], data: 'verdict' },
  'no-endpoint-range-services': { key: ['address', 'index'], data: 'verdict' },
  'no-endpoint-ips': { key: ['address'], data: 'verdict' },
  'no-endpoint-node-ports': { key: ['protocol', 'port'], data: 'verdict' },
  /** VIPs of port-range Services: all other ports are rejected. */
  'service-range-ips': { key: ['address'] },
  /** Cluster IPs: ports that no Service lists are rejected, as in kube-proxy. */
  'cluster-ips': { key: ['address'] },
} as const satisfies Readonly<Record<string, MapSpec>>;

/**
 * Number of parts of the sets of port ranges, a power of two up to 256; the last bits of the VIP select the part. With
 * each change the kernel (seen on 6.18) copies a changed set as a whole, which takes 0.3 ms for 1,000 ranges.
 */
export const RANGE_PARTS = 64;

/**
 * Port ranges by VIP and slot, see `EndpointSelection.slot`. They are no verdict maps: for each new verdict the kernel walks
 * through all elements of all verdict maps. They are no concatenations (nft_set_pipapo) either, because an added element
 * costs the size of such a set: 30,000 ranges took 38 s.
 */
const RANGE_SET = {
  key: ['address', 'index', 'protocol', 'port'],
  isInterval: true,
  isOrdered: true,
} as const satisfies MapSpec;

/**
 * Allowed sources of VIPs with loadBalancerSourceRanges, which exist on demand. A source allowed for a port range is not
 * allowed for a port inside it that belongs to another Service. The sets are ordered, because an added source costs the
 * size of a concatenated interval set (nft_set_pipapo): 40,000 sources took 38 s.
 */
const SOURCE_SETS = {
  /** Of listed ports. */
  'allowed-port-sources': {
    key: [...SERVICE_PORT, 'address'],
    isInterval: true,
    isOrdered: true,
  },
  /** Of port ranges and all ports, by VIP and slot, see `EndpointSelection.slot`. */
  'allowed-vip-sources': {
    key: ['address', 'index', 'address'],
    isInterval: true,
    isOrdered: true,
  },
} as const satisfies Readonly<Record<string, MapSpec>>;

/**
 * Number of parts of the maps of slices, a power of two up to 256. The last bits of the address select the part. With
 * each change the kernel (seen on 6.18) copies a changed map as a whole, for fast lookups. That takes 30 ms for 100,000
 * ranges.
 */
export const SLICE_PARTS = 128;

/** Maps and sets of owned ports, which exist only while a Service has owned ports. */
const OWNED_MAPS = {
  /** VIPs and owners of UDP ports, so that other packets cost one lookup in each direction. */
  'owned-addresses': { key: ['address'] },
  /** VIPs among them. What an owner sends to a VIP is exempt from connection tracking only if another owner gets it. */
  'owned-vips': { key: ['address'] },
  /** VIPs with owned UDP ports that accept packets only from `allowed-ranges`. */
  'owned-restricted-vips': { key: ['address'] },
  /** VIPs with their owned UDP ports. */
  'udp-vip-ports': { key: ['address', 'port'], isInterval: true, isOrdered: true },
} as const satisfies Readonly<Record<string, MapSpec>>;

/** Sets that exist only with a flowtable: VIPs and node ports whose connections may enter it. */
const FLOWTABLE_MAPS = {
  'flowtable-vips': { key: ['address'] },
  'flowtable-node-ports': { key: ['protocol', 'port'] },
} as const satisfies Readonly<Record<string, MapSpec>>;

/**
 * The chain of a part of the maps of slices, by the last bits of the destination or source address. The size has room for
 * elements of another program beside the elements of all parts.
 */
const OWNED_DISPATCH = {
  'owned-destinations': { key: ['address'], data: 'verdict', size: 2 * SLICE_PARTS },
  'owned-restricted': { key: ['address'], data: 'verdict', size: 2 * SLICE_PARTS },
  'owned-sources': { key: ['address'], data: 'verdict', size: 2 * SLICE_PARTS },
  'owned-speakers': { key: ['address'], data: 'verdict', size: 2 * SLICE_PARTS },
} as const satisfies Readonly<Record<string, MapSpec>>;

const BY_PORT = { key: ['address', 'port'], isInterval: true, isOrdered: true } as const;
const BY_PROTOCOL_AND_PORT = { ...BY_PORT, key: SERVICE_PORT } as const;

/** Maps of slices, each in `SLICE_PARTS` parts. */
const SLICE_MAPS = {
  /** Owners by VIP and UDP port. */
  'udp-owners': { ...BY_PORT, data: ['address'] },
  /** The same where loadBalancerSourceRanges restrict the clients. */
  'restricted-udp-owners': { ...BY_PORT, data: ['address'] },
  /** The VIP as which an owner speaks, by owner and UDP port. */
  'udp-owner-vips': { ...BY_PORT, data: ['address'] },
  /** Owners with their UDP ports. Before Linux 6.7 a rule cannot look up a map only to match. */
  'udp-owner-ports': BY_PORT,
  /** Owners of TCP and SCTP ports by VIP, protocol and port. */
  'tracked-owners': { ...BY_PROTOCOL_AND_PORT, data: ['address'] },
  /** The same for owners on other nodes, whose clients are masqueraded. */
  'remote-owners': { ...BY_PROTOCOL_AND_PORT, data: ['address'] },
} as const satisfies Readonly<Record<string, MapSpec>>;

/**
 * Ports of slices that one exact lookup finds, if they start at a multiple of their size, see `exact-slice-chains.ts`.
 * Few sizes, because each size in use costs all UDP packets two lookups.
 */
export const EXACT_SIZES = [1, 128, 256, 1024] as const;
export type ExactSize = (typeof EXACT_SIZES)[number];

const BY_SLICE = { key: ['address', 'port'] } as const;

/** Maps of UDP slices by address and first port, one for each of `EXACT_SIZES`; their ranges in `SLICE_MAPS` are the others. */
const EXACT_MAPS = {
  'udp-owners': { ...BY_SLICE, data: ['address'] },
  'udp-owner-vips': { ...BY_SLICE, data: ['address'] },
  'udp-owner-ports': BY_SLICE,
} as const satisfies Readonly<Record<string, MapSpec>>;

type ExactMap = keyof typeof EXACT_MAPS;
type SliceMap = keyof typeof SLICE_MAPS;
const PARTS = Array.from({ length: SLICE_PARTS }, (_, part) => part);

const EXACT_NAMES: ReadonlySet<string> = new Set(
  Object.keys(EXACT_MAPS).flatMap((map) => EXACT_SIZES.map((size) => `${map}-of-${size}`)),
);

const RANGE_SETS: readonly MapName[] = Array.from({ length: RANGE_PARTS }, (_, part) =>
  rangeSet(part),
);

/** Names of the maps and sets that exist only while chains refer to them (`NftChain.maps`). */
const ON_DEMAND: ReadonlySet<string> = new Set([
  ...Object.keys({ ...FLOWTABLE_MAPS, ...OWNED_MAPS, ...OWNED_DISPATCH, ...SOURCE_SETS }),
  ...RANGE_SETS,
  ...Object.keys(SLICE_MAPS).flatMap((map) => PARTS.map((part) => `${map}-${part}`)),
  ...EXACT_NAMES,
]);

/** The set that has the port ranges of a VIP. @param part see `RANGE_PARTS`. */
export function rangeSet(part: number): MapName {
  return `vip-ranges-${part}`;
}

/** Whether the set has port ranges by VIP and slot. */
export function isRangeSet(map: MapName): boolean {
  return map.startsWith('vip-ranges-');
}

/** One part of a map of slices. */
export function sliceMap(map: SliceMap, part: number): MapName {
  return `${map}-${part}`;
}

/** Whether the map has slices of TCP and SCTP ports by VIP. */
export function isTrackedSliceMap(map: MapName): boolean {
  return map.startsWith('tracked-owners-') || map.startsWith('remote-owners-');
}

/** Whether the map has slices of UDP ports by VIP or owner, which packets reach by `owned-addresses` only. */
export function isUdpSliceMap(map: MapName): boolean {
  return map.startsWith('udp-owners-') || isOwnerMap(map);
}

/** The map of UDP slices of one size. */
export function exactMap(map: ExactMap, size: ExactSize): MapName {
  return `${map}-of-${size}`;
}

/** Whether the map has UDP slices of one size. */
export function isExactMap(map: MapName): boolean {
  return EXACT_NAMES.has(map);
}

/** Whether keys of the map begin with an owner. Keys of other interval maps begin with a VIP. */
export function isOwnerMap(map: MapName): boolean {
  return map.startsWith('udp-owner-vips-') || map.startsWith('udp-owner-ports-');
}

/** Whether keys of the map are single numbers, see `MapSpec.isOrdered`. */
export function isOrderedMap(map: MapName): boolean {
  return mapSpec(map).isOrdered === true;
}

/** All maps and sets with elements of the agent, but for maps of slices; lookup maps precede the dispatch maps whose chains look them up. */
const MAPS = {
  ...LOOKUP_MAPS,
  ...FLOWTABLE_MAPS,
  ...OWNED_MAPS,
  ...OWNED_DISPATCH,
  ...SOURCE_SETS,
  ...AFFINITY_DISPATCH,
  ...NO_ENDPOINT_MAPS,
  ...DISPATCH,
} as const satisfies Readonly<Record<string, MapSpec>>;
/** Name of a map or set whose elements the agent writes. Rules write the affinity maps, which are not included. */
export type MapName =
  | keyof typeof LOOKUP_MAPS
  | keyof typeof AFFINITY_DISPATCH
  | keyof typeof NO_ENDPOINT_MAPS
  | keyof typeof DISPATCH
  | keyof typeof FLOWTABLE_MAPS
  | keyof typeof OWNED_MAPS
  | keyof typeof OWNED_DISPATCH
  | keyof typeof SOURCE_SETS
  | `vip-ranges-${number}`
  | `${SliceMap}-${number}`
  | `${ExactMap}-of-${ExactSize}`;
/** Names of the maps and sets that always exist, in the order of `MAPS`. */
export const MAP_NAMES = (Object.keys(MAPS) as MapName[]).filter((name) => !isOnDemand(name));

const specs = new Map<string, MapSpec>(Object.entries(MAPS));
for (const [map, spec] of Object.entries(SLICE_MAPS)) {
  for (const part of PARTS) specs.set(`${map}-${part}`, spec);
}

for (const map of RANGE_SETS) specs.set(map, RANGE_SET);
for (const [map, spec] of Object.entries(EXACT_MAPS)) {
  for (const size of EXACT_SIZES) specs.set(`${map}-of-${size}`, spec);
}

/** The type of a map or set of the agent. */
export function mapSpec(name: MapName): MapSpec {
  const spec = specs.get(name);
  if (spec === undefined) throw new RangeError(`no map ${name}`);
  return spec;
}

/** Whether the map exists only while chains refer to it (`NftChain.maps`). */
export function isOnDemand(name: string): name is MapName {
  return ON_DEMAND.has(name);
}

/**
 * Maps that dispatch packets. A full sync adds dispatch elements after the lookup elements, and deletes dispatch
 * elements first. For changes see `phasesOf`.
 */
const DISPATCH_MAPS: ReadonlySet<string> = new Set(
  Object.keys({ ...OWNED_DISPATCH, ...AFFINITY_DISPATCH, ...NO_ENDPOINT_MAPS, ...DISPATCH }),
);

/** Whether the map dispatches packets, see `DISPATCH_MAPS`. */
export function isDispatchMap(map: MapName): boolean {
  return DISPATCH_MAPS.has(map);
}

/**
 * Whether only packets that were not translated are looked up in the map. Elements of no-endpoint maps are deleted
 * last: a packet that found no VIP before the commit may still look up its verdict after the commit.
 */
export function isNoEndpointMap(map: MapName): boolean {
  return map in NO_ENDPOINT_MAPS;
}

/** Whether several Routes may need the same element. The element exists until the last such Route is removed. */
export function isReferenceCounted(map: MapName): boolean {
  return REFERENCE_COUNTED.has(map);
}

const REFERENCE_COUNTED: ReadonlySet<MapName> = new Set([
  'hairpin-connections',
  'health-check-node-ports',
  'service-range-ips',
  'cluster-ips',
  'flowtable-vips',
  'owned-addresses',
  'owned-vips',
  'owned-restricted-vips',
  'owned-destinations',
  'owned-restricted',
  'owned-sources',
  'owned-speakers',
]);

const MAP_FIELDS = {
  address: 'destination',
  protocol: 'protocol',
  port: 'port',
  index: 'index',
} as const satisfies Readonly<Record<MapField, keyof ReturnType<typeof setFields>>>;

/** Bytes that a field takes in the kernel. */
export function fieldWidth(field: MapField, family: IpFamily): number {
  return paddedLength(setFields(family)[MAP_FIELDS[field]]);
}

function fieldsOf(names: readonly MapField[], family: IpFamily): SetField[] {
  return names.map((name) => setFields(family)[MAP_FIELDS[name]]);
}

/** The declaration of a map or set. */
export function mapDeclaration(name: MapName, family: IpFamily): SetDeclaration {
  const { key, data, isInterval, isOrdered, size } = mapSpec(name);
  return {
    kind: 'set',
    name,
    key: fieldsOf(key, family),
    data: data === undefined || data === 'verdict' ? data : fieldsOf(data, family),
    isInterval,
    isOrdered,
    size,
  };
}

/**
 * The affinity map of Service ports and node ports: client, VIP or node address, protocol and port to endpoint. Rules
 * write its entries.
 */
export const AFFINITY_MAP = 'affinity';

/**
 * The affinity map of all-ports and port-range Services, whose clients keep their endpoint across ports.
 * Services that share a VIP have one map each, see `EndpointSelection.slot`.
 */
export function allPortsAffinityMap(slot: number): string {
  return `affinity-ips-${slot}`;
}

/**
 * Maximum number of entries of an affinity map. Further clients are served without affinity. Removing an endpoint dumps
 * the map twice, and the kernel restarts its walk for every part of a dump. That takes 2 s for 100,000
 * entries and 54 s for 300,000, while other changes wait.
 */
const MAX_CLIENTS = 131_072;

/** Entries have the timeout of their Service; an entry without one would have this. */
const AFFINITY_TIMEOUT = 10_800;

/** The declaration of an affinity map. */
export function affinityMapDeclaration(name: string, family: IpFamily): SetDeclaration {
  const isByPort = name === AFFINITY_MAP;
  return {
    kind: 'set',
    name,
    key: fieldsOf(
      ['address', 'address', ...(isByPort ? (['protocol', 'port'] as const) : [])],
      family,
    ),
    data: fieldsOf(isByPort ? ['address', 'port'] : ['address'], family),
    isDynamic: true,
    hasTimeouts: true,
    timeoutSeconds: AFFINITY_TIMEOUT,
    size: MAX_CLIENTS,
  };
}
