/**
 * The maps and sets of table `portwide`: all that differs from Service to Service, so that there is
 * no chain and no map of one Service alone. The kernel pays for every chain and map (and for many
 * maps in one table more than in proportion), for an element next to nothing.
 */
import type { IpFamily } from '../api/objects.ts';
import { nftFamily } from '../nft/rule.ts';

/** A part of a key or a value; in the kernel each takes a multiple of four bytes. */
export type MapField = 'address' | 'protocol' | 'port' | 'index';

export interface MapSpec {
  readonly key: readonly MapField[];
  /** What it maps to; a set maps to nothing. */
  readonly data?: 'verdict' | readonly MapField[];
  /** Elements are ranges, of ports or of addresses. */
  readonly isInterval?: true;
}

const SERVICE_PORT = ['address', 'protocol', 'port'] as const;

/** Where packets to a VIP go, in the order in which they are looked up: the precedence on one VIP. */
const DISPATCH = {
  /** Ports of load balancer VIPs that stay with the node (externalTrafficPolicy Local). */
  'health-ports': { key: ['address', 'port'] },
  'service-ports': { key: SERVICE_PORT, data: 'verdict' },
  'service-ranges': { key: SERVICE_PORT, data: 'verdict', isInterval: true },
  'service-ips': { key: ['address'], data: 'verdict' },
  'node-ports': { key: ['protocol', 'port'], data: 'verdict' },
} as const satisfies Readonly<Record<string, MapSpec>>;

/** What a packet is looked up in on its way from there. */
const LOOKUP_MAPS = {
  /** By VIP, port and a number drawn by lot. */
  endpoints: { key: [...SERVICE_PORT, 'index'], data: ['address', 'port'] },
  /** Of all-ports Services: the packet keeps its port. */
  'endpoint-ips': { key: ['address', 'index'], data: ['address'] },
  'node-port-endpoints': { key: ['protocol', 'port', 'index'], data: ['address', 'port'] },
  /**
   * Who may use a VIP, where not everybody may (loadBalancerSourceRanges). Who may use a range of it
   * may not therefore use a port in between that is of another Service.
   */
  'allowed-ports': { key: [...SERVICE_PORT, 'address'], isInterval: true },
  'allowed-ranges': { key: [...SERVICE_PORT, 'address'], isInterval: true },
  'allowed-ips': { key: ['address', 'address'], isInterval: true },
  /** Endpoints that may be led back to themselves, and must not see their own address then. */
  hairpins: { key: ['address', 'address'] },
  /** Addresses of the node on which node ports are served. */
  'node-port-ips': { key: ['address'] },
} as const satisfies Readonly<Record<string, MapSpec>>;

/** For which VIPs and ports it is noted who was served by whom. */
const AFFINITY_DISPATCH = {
  'sticky-ports': { key: SERVICE_PORT, data: 'verdict' },
  'sticky-ranges': { key: SERVICE_PORT, data: 'verdict', isInterval: true },
  'sticky-ips': { key: ['address'], data: 'verdict' },
  'sticky-node-ports': { key: ['protocol', 'port'], data: 'verdict' },
} as const satisfies Readonly<Record<string, MapSpec>>;

/** The fate of packets to a VIP that nobody translated. */
const NO_ENDPOINT_MAPS = {
  'port-fates': { key: SERVICE_PORT, data: 'verdict' },
  'range-fates': { key: SERVICE_PORT, data: 'verdict', isInterval: true },
  'ip-fates': { key: ['address'], data: 'verdict' },
  'node-port-fates': { key: ['protocol', 'port'], data: 'verdict' },
  /** VIPs of which some ranges are served: the rest is rejected. */
  'ranged-ips': { key: ['address'] },
  /** Cluster IPs: what no Service lists is rejected, as in kube-proxy. */
  'cluster-ips': { key: ['address'] },
} as const satisfies Readonly<Record<string, MapSpec>>;

/** Sources before what leads packets to them: the order in which elements come into being. */
export const MAPS: Readonly<Record<MapName, MapSpec>> = {
  ...LOOKUP_MAPS,
  ...AFFINITY_DISPATCH,
  ...NO_ENDPOINT_MAPS,
  ...DISPATCH,
};
export type MapName =
  | keyof typeof LOOKUP_MAPS
  | keyof typeof AFFINITY_DISPATCH
  | keyof typeof NO_ENDPOINT_MAPS
  | keyof typeof DISPATCH;
export const MAP_NAMES = Object.keys(MAPS) as readonly MapName[];

/** Maps that lead packets on. What they lead to is there before them, and goes after them. */
const DISPATCH_MAPS: ReadonlySet<string> = new Set(
  Object.keys({ ...AFFINITY_DISPATCH, ...NO_ENDPOINT_MAPS, ...DISPATCH }),
);

export function isDispatchMap(map: MapName): boolean {
  return DISPATCH_MAPS.has(map);
}

/**
 * Maps that only what nobody translated is looked up in. They go last: a packet that found no VIP to
 * be translated by may be under way to them, when that is there by now.
 */
export function isNoEndpointMap(map: MapName): boolean {
  return map in NO_ENDPOINT_MAPS;
}

/** Elements that several Services may ask for, and that stay as long as one does. */
export function isReferenceCounted(map: MapName): boolean {
  return REFERENCE_COUNTED.has(map);
}

const REFERENCE_COUNTED: ReadonlySet<MapName> = new Set([
  'hairpins',
  'health-ports',
  'ranged-ips',
  'cluster-ips',
]);

const TYPES: Readonly<Record<MapField, (ip: string) => string>> = {
  address: (ip) => `${ip} daddr`,
  protocol: () => 'meta l4proto',
  port: () => 'th dport',
  index: () => 'numgen random mod 65536',
};

/** Bytes of a field in the kernel. */
export function widthOf(field: MapField, family: IpFamily): number {
  return field === 'address' && family === 'IPv6' ? 16 : 4;
}

function typeText(fields: readonly MapField[], ip: string): string {
  return fields.map((field) => TYPES[field](ip)).join(' . ');
}

/** A declaration for nft. A table that has it already takes it as well. */
export function mapDeclaration(name: MapName, family: IpFamily): string {
  const { key, data, isInterval } = MAPS[name];
  const ip = nftFamily(family);
  const value = data === 'verdict' ? ' : verdict' : data && ` : ${typeText(data, ip)}`;
  const flags = isInterval ? ' flags interval;' : '';
  return `${data === undefined ? 'set' : 'map'} ${name} { typeof ${typeText(key, ip)}${value ?? ''};${flags} }`;
}

/** Who was served by whom, of ordinary Services; packets write it. */
export const AFFINITY_MAP = 'affinity';

/**
 * The same, of all-ports Services, whose clients stay with an endpoint across ports. One for each of
 * the Services that share a VIP, see `slot`.
 */
export function allPortsAffinityMap(slot: number): string {
  return `affinity-ips-${slot}`;
}

/**
 * Clients for whom it can be remembered; a new one beyond is served, and not remembered. When an
 * endpoint goes all are read, twice, and the kernel counts from the first again for each part that it
 * hands out: 2 s for 100,000, but 54 s for 300,000, while other changes wait.
 */
const MAX_CLIENTS = 131_072;

/** A declaration of a map that packets write. */
export function affinityMapDeclaration(name: string, family: IpFamily): string {
  const ip = nftFamily(family);
  const isByPort = name === AFFINITY_MAP;
  const key = typeText(
    ['address', 'address', ...(isByPort ? (['protocol', 'port'] as const) : [])],
    ip,
  );
  const data = typeText(isByPort ? ['address', 'port'] : ['address'], ip);
  return `map ${name} { typeof ${key} : ${data}; flags dynamic,timeout; size ${MAX_CLIENTS}; timeout 3h; }`;
}
