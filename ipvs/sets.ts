/**
 * The ipsets of this mode. Those of the first group are kube-proxy's, by name, type and meaning
 * (pkg/proxy/ipvs/ipset.go); the others serve all-ports Services, and the clients inside the
 * cluster of Services whose traffic policy is Local.
 */
import type { IpFamily } from '../api/objects.ts';
import type { IpsetSpec, IpsetType } from '../netlink/ipset/ipset.ts';

interface SetDefinition {
  readonly type: IpsetType;
  /** Entries give packets a mark. */
  readonly marks?: boolean;
  /** Entries say to whom they belong. */
  readonly comments?: boolean;
}

const SET_DEFINITIONS = {
  /** Endpoint, port, endpoint: a pod that is sent back to itself. */
  'KUBE-LOOP-BACK': { type: 'hash:ip,port,ip' },
  'KUBE-CLUSTER-IP': { type: 'hash:ip,port' },
  'KUBE-EXTERNAL-IP': { type: 'hash:ip,port' },
  'KUBE-EXTERNAL-IP-LOCAL': { type: 'hash:ip,port' },
  'KUBE-LOAD-BALANCER': { type: 'hash:ip,port' },
  /** Those of KUBE-LOAD-BALANCER with externalTrafficPolicy Local. */
  'KUBE-LOAD-BALANCER-LOCAL': { type: 'hash:ip,port' },
  /** Those of KUBE-LOAD-BALANCER with source ranges, and who may use them. */
  'KUBE-LOAD-BALANCER-FW': { type: 'hash:ip,port' },
  'KUBE-LOAD-BALANCER-SOURCE-IP': { type: 'hash:ip,port,ip' },
  'KUBE-LOAD-BALANCER-SOURCE-CIDR': { type: 'hash:ip,port,net' },
  'KUBE-NODE-PORT-TCP': { type: 'bitmap:port' },
  'KUBE-NODE-PORT-LOCAL-TCP': { type: 'bitmap:port' },
  'KUBE-NODE-PORT-UDP': { type: 'bitmap:port' },
  'KUBE-NODE-PORT-LOCAL-UDP': { type: 'bitmap:port' },
  'KUBE-NODE-PORT-SCTP-HASH': { type: 'hash:ip,port' },
  'KUBE-NODE-PORT-LOCAL-SCTP-HASH': { type: 'hash:ip,port' },
  'KUBE-HEALTH-CHECK-NODE-PORT': { type: 'bitmap:port' },
  /** All VIPs that are not the node's own addresses. */
  'KUBE-IPVS-IPS': { type: 'hash:ip' },

  /** Who has which mark: the memory of the allocator, and what `portwide ipvs marks` prints. */
  'KUBE-MARKS': { type: 'hash:ip,mark', comments: true },
  /** VIPs with an all-ports Service, of ranges or all. */
  'KUBE-ALL-PORTS-IPS': { type: 'hash:ip' },
  /** VIP, to the mark of the Service on all its ports. */
  'KUBE-ALL-PORTS': { type: 'hash:ip', marks: true },
  /** VIP and port, to the mark of the Service that has the range. */
  'KUBE-PORT-RANGES': { type: 'hash:ip,port', marks: true },
  /** The same for pods and the node itself, where the traffic policy Local does not bind them. */
  'KUBE-INSIDE-ALL-PORTS': { type: 'hash:ip', marks: true },
  'KUBE-INSIDE-PORT-RANGES': { type: 'hash:ip,port', marks: true },
  /** VIP and listed port, likewise. */
  'KUBE-INSIDE-PORTS': { type: 'hash:ip,port', marks: true },
  /** VIP and port of listed ports whose policy finds no endpoint on this node. */
  'KUBE-DROP': { type: 'hash:ip,port' },
  /** The same, but pods and the node itself are served. */
  'KUBE-DROP-OUTSIDE': { type: 'hash:ip,port' },
  /** VIP and mark: to be masqueraded as KUBE-CLUSTER-IP is, as KUBE-LOAD-BALANCER is. */
  'KUBE-CLUSTER-IP-MARK': { type: 'hash:ip,mark' },
  'KUBE-LOAD-BALANCER-MARK': { type: 'hash:ip,mark' },
  /** VIP and mark of those with source ranges, and who may use them: of ranges, of all ports. */
  'KUBE-PORT-RANGES-FW': { type: 'hash:ip,mark' },
  'KUBE-PORT-RANGES-SOURCE': { type: 'hash:ip,port,net' },
  'KUBE-ALL-PORTS-FW': { type: 'hash:ip,mark' },
  'KUBE-ALL-PORTS-SOURCE': { type: 'hash:net,net' },
  /** KUBE-LOOP-BACK for every port. */
  'KUBE-ALL-PORTS-LOOP-BACK': { type: 'hash:net,net' },
  /** Load balancer VIP and healthCheckNodePort, which stay with the node. */
  'KUBE-HEALTH-CHECK-VIP': { type: 'hash:ip,port' },
} as const satisfies Record<string, SetDefinition>;

export type SetName = keyof typeof SET_DEFINITIONS;
export const SET_NAMES = Object.keys(SET_DEFINITIONS) as readonly SetName[];

/**
 * The kernel's default, and kube-proxy's. kube-proxy creates its sets anew with every sync, and a set
 * that differs in this would keep it from ever taking over again.
 */
const DEFAULT_MAX_ELEMENTS = 65_536;
/** Only a bound. Room is left for what comes before the next comparison. */
const LARGE_MAX_ELEMENTS = 1 << 24;
const HEADROOM_FACTOR = 2;

/** IPSET_MAXNAMELEN is 32 with the final zero; kube-proxy cuts its IPv6 names there. */
const MAX_NAME_LENGTH = 31;

/** Name in the kernel: kube-proxy's IPv6 sets have `KUBE-6-` for `KUBE-`. */
export function kernelName(name: SetName, family: IpFamily): string {
  if (family === 'IPv4') return name;
  return name.replace('KUBE-', 'KUBE-6-').slice(0, MAX_NAME_LENGTH);
}

/**
 * How the set is created.
 * @param entries how many it is to hold.
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

/** Where a set is built that will take the place of another. */
export function temporarySet(family: IpFamily): string {
  return family === 'IPv4' ? 'KUBE-TMP' : 'KUBE-6-TMP';
}

/** Names of all sets of this mode, of kube-proxy's too. Others begin alike: kube-router's. */
export function allSetNames(family: IpFamily): string[] {
  return [...SET_NAMES.map((set) => kernelName(set, family)), temporarySet(family)];
}
