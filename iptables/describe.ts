/** What the rules of modes iptables and ipvs are for, for people who trace a packet through iptables-nft. */
import type { KernelRule, RulePurpose } from '../proxier/kernel-rule.ts';
import {
  CANARY,
  EXTERNAL_SERVICES,
  FIREWALL,
  FORWARD,
  IPVS_FILTER,
  IPVS_NODE_PORT,
  IPVS_OUT_FILTER,
  LOAD_BALANCER,
  MARK_MASQ,
  NODE_PORTS,
  POSTROUTING,
  PROXY_FIREWALL,
  RESET_OR_DROP,
  RESET_OR_REJECT,
  SERVICES,
  SOURCE_RANGES_FIREWALL,
  TREE_PREFIX,
} from './chains.ts';
import { type Ruleset, TABLES } from './ruleset.ts';

const CHAIN_PURPOSES: Readonly<Record<string, string>> = {
  [SERVICES]: 'finds the Service of the destination',
  [NODE_PORTS]: 'finds the Service of a node port',
  [EXTERNAL_SERVICES]: 'rejects or drops packets to node ports without an endpoint for the client',
  [PROXY_FIREWALL]: 'drops packets of sources outside loadBalancerSourceRanges, and to port 0',
  [POSTROUTING]: 'masquerades marked connections',
  [MARK_MASQ]: 'marks the connection for masquerade',
  [RESET_OR_REJECT]: 'resets established TCP connections and rejects other packets',
  [RESET_OR_DROP]: 'resets established TCP connections and drops other packets',
  [FORWARD]: 'accepts forwarded packets of Services, and drops packets in conntrack state INVALID',
  [FIREWALL]: 'drops packets to 127.0.0.0/8 from other hosts',
  [CANARY]: 'detects a flush',
  [IPVS_NODE_PORT]: 'marks packets to node ports for masquerade',
  [LOAD_BALANCER]: 'marks packets to load balancer VIPs for masquerade',
  [SOURCE_RANGES_FIREWALL]: 'drops packets of sources outside loadBalancerSourceRanges',
  [IPVS_FILTER]: 'rejects packets to VIPs that IPVS does not serve',
  [IPVS_OUT_FILTER]: 'rejects packets to VIPs that IPVS does not serve',
};

/** By the start of the name; the dispatch trees come before the chains of Services. */
const PREFIX_PURPOSES: readonly (readonly [prefix: string, purpose: string])[] = [
  [TREE_PREFIX.vips, 'finds the Service of a VIP'],
  [TREE_PREFIX.firewall, 'drops packets of sources outside loadBalancerSourceRanges'],
  [TREE_PREFIX.nodePorts, 'finds the Service of a node port'],
  [TREE_PREFIX.nodePortVerdicts, 'rejects or drops packets to a node port without an endpoint'],
  [TREE_PREFIX.healthChecks, 'accepts health checks of load balancers'],
  ['KUBE-ALL-PORTS', 'handles all-ports Services of mode ipvs'],
  ['KUBE-PORT-RANGES', 'handles port ranges of mode ipvs'],
  ['KUBE-SVC-', 'selects an endpoint (traffic policy Cluster)'],
  ['KUBE-SVL-', 'selects an endpoint (traffic policy Local)'],
  ['KUBE-EXT-', 'decides on masquerade and traffic policy of external clients'],
  ['KUBE-FW-', 'lets only sources in loadBalancerSourceRanges continue'],
  ['KUBE-SEP-', 'translates to one endpoint'],
];

/** @returns undefined for a rule of another program, jumps from built-in chains excluded. */
export function describeIptablesRule(
  { table, chain, index }: KernelRule,
  ruleset: Ruleset,
): RulePurpose | undefined {
  const known = TABLES.find((each) => each === table);
  const purpose =
    CHAIN_PURPOSES[chain] ?? PREFIX_PURPOSES.find(([prefix]) => chain.startsWith(prefix))?.[1];
  if (known === undefined || purpose === undefined) return undefined;
  const rules = ruleset.chainRules(known, chain);
  const text = index === undefined ? undefined : rules[index];
  return { purpose, text, service: ruleset.serviceOfChain(chain) };
}
