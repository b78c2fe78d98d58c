/** Names of chains: kube-proxy's, and which of them are ours to flush and delete. */
import { hash } from 'node:crypto';
import { socketAddress } from '../api/addresses.ts';
import { getOrCreate } from '../api/collections.ts';
import type { IpFamily, Protocol } from '../api/objects.ts';

export type Table = 'mangle' | 'nat' | 'filter';

/** kube-proxy's chain names; dashboards, scripts and kube-proxy itself know these rules by them. */
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

/** Chains of the IPVS mode; those from `ALL_PORTS` on are not kube-proxy's. */
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
 * Prefixes of chains that come and go with Services. kube-proxy removes chains of these names that
 * it does not know, and does so in the transaction that brings its own rules: every chain of ours
 * that jumps to one must bear such a name too, or kube-proxy could never take over again.
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

/** Names of the dispatch trees' chains, before their suffix; no hash is as short. */
export const TREE_PREFIX = {
  vips: 'KUBE-SVC-VIP-',
  firewall: 'KUBE-FW-VIP-',
  nodePorts: 'KUBE-SVC-NP-',
  nodePortVerdicts: 'KUBE-EXT-NP-',
  healthChecks: 'KUBE-SVC-HC-',
} as const;

/** Whether a chain stands whatever Services there are; only built-in chains jump to those. */
export function isStaticChain(name: string): boolean {
  return STATIC_CHAINS.includes(name);
}

/**
 * Whether a chain belongs to kube-proxy or Portwide alone, in whatever mode, so that it may be
 * flushed and deleted. KUBE-FIREWALL is shared with the kubelet, and its KUBE-IPTABLES-HINT and
 * KUBE-KUBELET-CANARY are its own: those are never touched.
 */
export function isOwnChain(name: string): boolean {
  return isStaticChain(name) || SERVICE_PREFIXES.some((prefix) => name.startsWith(prefix));
}

/** Chains of one Service port, named as kube-proxy names them. */
export interface ServiceChains {
  /** Spreads over the endpoints of traffic policy Cluster. */
  readonly cluster: string;
  /** Spreads over the endpoints of traffic policy Local. */
  readonly local: string;
  /** Traffic from outside: decides on masquerade and policy. */
  readonly external: string;
  /** Source ranges of load balancer VIPs. */
  readonly firewall: string;
  endpoint(address: string, port: number | undefined): string;
}

/**
 * kube-proxy hashes `ns/name:port`, the lower-case protocol and, for an endpoint, `ip:port`, so
 * that a node changes hands without leaking chains. An all-ports Service has `*` for its port, which
 * no port is named, and no protocol; its endpoints have no port.
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

/**
 * A prefix and the first 16 characters of the base32 (RFC 4648) SHA-256, which keeps names within 28
 * characters. Joined, for what is put together with `+` V8 keeps in its parts, at four times the
 * memory, and there are as many names as endpoints.
 */
function hashedName(prefix: string, text: string): string {
  const digest = hash('sha256', text, 'buffer');
  const parts = [prefix];
  // 16 times 5 bits: the first 80 of the digest.
  for (let bit = 0; bit < 80; bit += 5) {
    const twoBytes = digest.readUInt16BE(bit >> 3);
    parts.push(BASE32.charAt((twoBytes >> (11 - (bit & 7))) & 31));
  }
  return parts.join('');
}

const BASE32 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567';

/** Length of the prefix that means one host. */
export function hostPrefixLength(family: IpFamily): number {
  return family === 'IPv4' ? 32 : 128;
}
