/** Chain names, and which chains Portwide may flush and delete. */
import { hash } from 'node:crypto';
import { socketAddress } from '../api/addresses.ts';
import { getOrCreate } from '../api/collections.ts';
import type { Protocol } from '../api/objects.ts';

export type Table = 'mangle' | 'nat' | 'filter';

/**
 * kube-proxy's chain names, except for RESET_OR_REJECT and RESET_OR_DROP, which are Portwide's.
 * Dashboards, scripts and kube-proxy itself depend on kube-proxy's names.
 */
export const SERVICES = 'KUBE-SERVICES';
export const NODE_PORTS = 'KUBE-NODEPORTS';
export const EXTERNAL_SERVICES = 'KUBE-EXTERNAL-SERVICES';
export const PROXY_FIREWALL = 'KUBE-PROXY-FIREWALL';
export const POSTROUTING = 'KUBE-POSTROUTING';
export const MARK_MASQ = 'KUBE-MARK-MASQ';
export const RESET_OR_REJECT = 'KUBE-SVC-RESET-OR-REJECT';
export const RESET_OR_DROP = 'KUBE-SVC-RESET-OR-DROP';
export const FORWARD = 'KUBE-FORWARD';
export const FIREWALL = 'KUBE-FIREWALL';
export const CANARY = 'KUBE-PROXY-CANARY';

/**
 * Chains of the ipvs mode. `ALL_PORTS` and the chains after it are Portwide's; the chains before it
 * are kube-proxy's.
 */
export const IPVS_NODE_PORT = 'KUBE-NODE-PORT';
export const LOAD_BALANCER = 'KUBE-LOAD-BALANCER';
export const SOURCE_RANGES_FIREWALL = 'KUBE-SOURCE-RANGES-FIREWALL';
export const IPVS_FILTER = 'KUBE-IPVS-FILTER';
export const IPVS_OUT_FILTER = 'KUBE-IPVS-OUT-FILTER';
export const ALL_PORTS = 'KUBE-ALL-PORTS';
export const ALL_PORTS_INSIDE = 'KUBE-ALL-PORTS-INSIDE';
export const ALL_PORTS_MARK = 'KUBE-ALL-PORTS-MARK';
export const ALL_PORTS_FIREWALL = 'KUBE-ALL-PORTS-FIREWALL';
export const PORT_RANGES_FIREWALL = 'KUBE-PORT-RANGES-FIREWALL';

/**
 * Prefixes of chains that belong to a Service. kube-proxy removes unknown chains with such a
 * prefix, in the same transaction that writes its own rules. A Portwide chain that jumps to a chain
 * with such a prefix must therefore have such a prefix too. Otherwise kube-proxy could not take
 * over: a chain with references cannot be removed.
 */
const SERVICE_PREFIXES = [
  'KUBE-SVC-',
  'KUBE-SVL-',
  'KUBE-EXT-',
  'KUBE-FW-',
  'KUBE-SEP-',
  // Older kube-proxy versions.
  'KUBE-XLB-',
];

const STATIC_CHAINS = [
  SERVICES,
  NODE_PORTS,
  EXTERNAL_SERVICES,
  PROXY_FIREWALL,
  POSTROUTING,
  MARK_MASQ,
  FORWARD,
  CANARY,
  IPVS_NODE_PORT,
  LOAD_BALANCER,
  SOURCE_RANGES_FIREWALL,
  IPVS_FILTER,
  IPVS_OUT_FILTER,
  ALL_PORTS,
  ALL_PORTS_INSIDE,
  ALL_PORTS_MARK,
  ALL_PORTS_FIREWALL,
  PORT_RANGES_FIREWALL,
];

/** Chains of the kubelet, in table mangle: a kubelet uses the variant that has them. */
const KUBELET_CHAINS = ['KUBE-IPTABLES-HINT', 'KUBE-KUBELET-CANARY'];

/** Longest name of a chain (XT_EXTENSION_MAXNAMELEN). */
const MAX_NAME_LENGTH = 28;

/**
 * Prefixes of the dispatch trees' chain names. The suffixes are shorter than any hash, so names do
 * not collide. A VIP with many rules has a hash as suffix, see `vipChain`.
 */
export const TREE_PREFIX = {
  vips: 'KUBE-SVC-VIP-',
  firewall: 'KUBE-FW-VIP-',
  nodePorts: 'KUBE-SVC-NP-',
  nodePortVerdicts: 'KUBE-EXT-NP-',
  healthChecks: 'KUBE-SVC-HC-',
} as const;

/**
 * Whether a chain is one of STATIC_CHAINS. All jumps of Portwide and kube-proxy from built-in chains
 * lead to a static chain or to KUBE-FIREWALL.
 */
export function isStaticChain(name: string): boolean {
  return STATIC_CHAINS.includes(name);
}

/** Whether a kubelet uses a variant. @param mangle names of the chains in table mangle. */
export function hasKubeletChain(mangle: readonly string[]): boolean {
  return mangle.some((name) => KUBELET_CHAINS.includes(name));
}

/**
 * Whether a chain belongs to kube-proxy or Portwide alone, in any mode, so that it may be flushed
 * and deleted. KUBE-FIREWALL is shared with the kubelet. KUBE-IPTABLES-HINT and KUBE-KUBELET-CANARY
 * belong to the kubelet and stay untouched.
 */
export function isOwnChain(name: string): boolean {
  return isStaticChain(name) || SERVICE_PREFIXES.some((prefix) => name.startsWith(prefix));
}

/** Chains of one Service port, with kube-proxy's names. */
export interface ServiceChains {
  /** Selects an endpoint of traffic policy Cluster. */
  readonly cluster: string;
  /** Selects an endpoint of traffic policy Local. */
  readonly local: string;
  /** Handles packets to external VIPs and node ports: decides on masquerade and traffic policy. */
  readonly external: string;
  /**
   * Passes packets to load balancer VIPs on to `external` if the source is allowed. Table filter drops
   * all other packets to these VIPs.
   */
  readonly firewall: string;
  endpoint(address: string, port: number | undefined): string;
}

/**
 * Chain names of one Service port. kube-proxy hashes `ns/name:port`, the lower-case protocol and,
 * for an endpoint, `ip:port`. With equal names, either program can replace the other without
 * leaking chains. An all-ports Service has `*` as its port name, which no port can have, and no
 * protocol; its endpoints have no port.
 */
export function serviceChains(name: string, protocol: Protocol | undefined): ServiceChains {
  const key = protocol === undefined ? `${name}:*` : name + protocol.toLowerCase();
  const service = hashedName('', key);
  const endpoints = new Map<string, string>();
  return {
    cluster: `KUBE-SVC-${service}`,
    local: `KUBE-SVL-${service}`,
    external: `KUBE-EXT-${service}`,
    firewall: `KUBE-FW-${service}`,
    endpoint: (address, port) => {
      const target = socketAddress(address, port);
      return getOrCreate(endpoints, target, () => hashedName('KUBE-SEP-', key + target));
    },
  };
}

/** Chain of one VIP in a dispatch tree. @param prefix of the tree. */
export function vipChain(prefix: string, vip: string): string {
  return hashedName(prefix, vip).slice(0, MAX_NAME_LENGTH);
}

/**
 * A prefix and the first 16 characters of the SHA-256 hash in base32 (RFC 4648), so that names have
 * at most 28 characters. Uses `join`, because each endpoint has such a name: V8 keeps the parts of
 * a string concatenated with `+`, at four times the memory.
 */
function hashedName(prefix: string, text: string): string {
  const digest = hash('sha256', text, 'buffer');
  const parts = [prefix];
  // 16 characters of 5 bits: the first 80 bits of the digest.
  for (let bit = 0; bit < 80; bit += 5) {
    const twoBytes = digest.readUInt16BE(bit >> 3);
    parts.push(BASE32.charAt((twoBytes >> (11 - (bit & 7))) & 31));
  }
  return parts.join('');
}

const BASE32 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567';
