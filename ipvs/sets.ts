/**
 * ipsets of the ipvs mode. The first group has the names, types and meaning of kube-proxy's sets
 * (pkg/proxy/ipvs/ipset.go). The other sets are for all-ports Services, for traffic policy Local and
 * for health checks on VIPs.
 */
import type { IpFamily } from '../api/objects.ts';
import type { IpsetHeader, IpsetSpec, IpsetType } from '../netlink/ipset/ipset.ts';

interface SetDefinition {
  readonly type: IpsetType;
  /** Whether entries set a packet mark (skbinfo). */
  readonly marks?: boolean;
  /** Whether entries name their owner in a comment. */
  readonly comments?: boolean;
}

const SET_DEFINITIONS = {
  /** Endpoint, port, endpoint: hairpin connections. */
  'KUBE-LOOP-BACK': { type: 'hash:ip,port,ip' },
  'KUBE-CLUSTER-IP': { type: 'hash:ip,port' },
  'KUBE-EXTERNAL-IP': { type: 'hash:ip,port' },
  'KUBE-EXTERNAL-IP-LOCAL': { type: 'hash:ip,port' },
  'KUBE-LOAD-BALANCER': { type: 'hash:ip,port' },
  /** Entries of KUBE-LOAD-BALANCER with externalTrafficPolicy Local. */
  'KUBE-LOAD-BALANCER-LOCAL': { type: 'hash:ip,port' },
  /** Entries of KUBE-LOAD-BALANCER with source ranges. */
  'KUBE-LOAD-BALANCER-FW': { type: 'hash:ip,port' },
  /** Entries of KUBE-LOAD-BALANCER-FW with an allowed source, as an address or a CIDR. */
  'KUBE-LOAD-BALANCER-SOURCE-IP': { type: 'hash:ip,port,ip' },
  'KUBE-LOAD-BALANCER-SOURCE-CIDR': { type: 'hash:ip,port,net' },
  'KUBE-NODE-PORT-TCP': { type: 'bitmap:port' },
  'KUBE-NODE-PORT-LOCAL-TCP': { type: 'bitmap:port' },
  'KUBE-NODE-PORT-UDP': { type: 'bitmap:port' },
  'KUBE-NODE-PORT-LOCAL-UDP': { type: 'bitmap:port' },
  'KUBE-NODE-PORT-SCTP-HASH': { type: 'hash:ip,port' },
  'KUBE-NODE-PORT-LOCAL-SCTP-HASH': { type: 'hash:ip,port' },
  'KUBE-HEALTH-CHECK-NODE-PORT': { type: 'bitmap:port' },
  /** All VIPs that are not node addresses. */
  'KUBE-IPVS-IPS': { type: 'hash:ip' },

  /**
   * Mark records: VIP, mark, and the owner in the comment. The records keep mark allocations across
   * restarts; `portwide ipvs marks` prints them.
   */
  'KUBE-MARKS': { type: 'hash:ip,mark', comments: true },
  /** VIPs of Services with port ranges or all ports. */
  'KUBE-ALL-PORTS-IPS': { type: 'hash:ip' },
  /** VIP to mark of the Service with all its ports. */
  'KUBE-ALL-PORTS': { type: 'hash:ip', marks: true },
  /** VIP and port to mark of the Service with this port in a range. */
  'KUBE-PORT-RANGES': { type: 'hash:ip,port', marks: true },
  /**
   * Like KUBE-ALL-PORTS and KUBE-PORT-RANGES, but for clients inside the cluster: pods and the node
   * itself, to which traffic policy Local does not apply.
   */
  'KUBE-INSIDE-ALL-PORTS': { type: 'hash:ip', marks: true },
  'KUBE-INSIDE-PORT-RANGES': { type: 'hash:ip,port', marks: true },
  /** VIP and listed port to mark, for pods and the node itself. */
  'KUBE-INSIDE-PORTS': { type: 'hash:ip,port', marks: true },
  /** VIP and listed port for which the traffic policy leaves no endpoint on this node. */
  'KUBE-DROP': { type: 'hash:ip,port' },
  /**
   * Like KUBE-DROP, but only for clients outside the cluster: pods and the node itself are served.
   */
  'KUBE-DROP-OUTSIDE': { type: 'hash:ip,port' },
  /**
   * VIP and mark of all-ports Services, masqueraded like entries of KUBE-CLUSTER-IP and
   * KUBE-LOAD-BALANCER.
   */
  'KUBE-CLUSTER-IP-MARK': { type: 'hash:ip,mark' },
  'KUBE-LOAD-BALANCER-MARK': { type: 'hash:ip,mark' },
  /**
   * VIP and mark of Services with source ranges, and sets with their allowed sources: for port
   * ranges, then for all ports.
   */
  'KUBE-PORT-RANGES-FW': { type: 'hash:ip,mark' },
  'KUBE-PORT-RANGES-SOURCE': { type: 'hash:ip,port,net' },
  'KUBE-ALL-PORTS-FW': { type: 'hash:ip,mark' },
  'KUBE-ALL-PORTS-SOURCE': { type: 'hash:net,net' },
  /** KUBE-LOOP-BACK for all ports. */
  'KUBE-ALL-PORTS-LOOP-BACK': { type: 'hash:net,net' },
  /** Load balancer VIP and healthCheckNodePort: packets that the node itself handles. */
  'KUBE-HEALTH-CHECK-VIP': { type: 'hash:ip,port' },
} as const satisfies Record<string, SetDefinition>;

export type SetName = keyof typeof SET_DEFINITIONS;
export const SET_NAMES = Object.keys(SET_DEFINITIONS) as readonly SetName[];

/**
 * Default of the kernel and of kube-proxy. kube-proxy creates its sets with every sync, and
 * kube-proxy could not take over from an agent whose sets have another size.
 */
const DEFAULT_MAX_ELEMENTS = 65_536;
/**
 * Maximum elements of Portwide's own sets, and of kube-proxy's sets that need more entries than the
 * default.
 */
const LARGE_MAX_ELEMENTS = 1 << 24;
/** Leaves room for entries that are added before the next full sync. */
const HEADROOM_FACTOR = 2;

/**
 * IPSET_MAXNAMELEN is 32 with the terminating NUL. kube-proxy truncates its IPv6 names to this
 * length.
 */
const MAX_NAME_LENGTH = 31;

/**
 * Name of a set in the kernel. IPv6 sets have the prefix `KUBE-6-` instead of `KUBE-`, as in
 * kube-proxy.
 */
export function kernelName(name: SetName, family: IpFamily): string {
  if (family === 'IPv4') return name;
  return name.replace('KUBE-', 'KUBE-6-').slice(0, MAX_NAME_LENGTH);
}

/**
 * Parameters for creating a set.
 * @param entries number of entries that the set must hold.
 */
export function setSpec(name: SetName, family: IpFamily, entries = 0): IpsetSpec {
  const shape: SetDefinition = SET_DEFINITIONS[name];
  const isKubeProxys = SET_NAMES.indexOf(name) <= SET_NAMES.indexOf('KUBE-IPVS-IPS');
  const isSmall = isKubeProxys && entries * HEADROOM_FACTOR <= DEFAULT_MAX_ELEMENTS;
  return {
    name: kernelName(name, family),
    type: shape.type,
    family,
    skbinfo: shape.marks ?? false,
    comments: shape.comments ?? false,
    maxElements: isSmall ? DEFAULT_MAX_ELEMENTS : LARGE_MAX_ELEMENTS,
  };
}

/** Name of the temporary set that is filled and then swapped with an existing set. */
export function temporarySet(family: IpFamily): string {
  return family === 'IPv4' ? 'KUBE-TMP' : 'KUBE-6-TMP';
}

/**
 * Names of all sets of this mode, including kube-proxy's. A prefix is not sufficient, because sets
 * of kube-router have the same prefix.
 */
export function allSetNames(family: IpFamily): string[] {
  return [...SET_NAMES.map((set) => kernelName(set, family)), temporarySet(family)];
}

/** Whether a set can hold the desired entries. A set that is larger than needed is kept. */
export function isUsable(header: IpsetHeader, spec: IpsetSpec): boolean {
  return (
    header.type === spec.type &&
    (header.family ?? spec.family) === spec.family &&
    header.skbinfo === spec.skbinfo &&
    header.comments === (spec.comments ?? false) &&
    (header.maxElements ?? spec.maxElements) >= spec.maxElements
  );
}
