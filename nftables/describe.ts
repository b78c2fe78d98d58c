/** What the rules of table `portwide` are for, for people who trace a packet. */
import { nftRuleText } from '../nft/rule.ts';
import type { KernelRule, RulePurpose } from '../proxier/kernel-rule.ts';
import type { NftChain } from './chains.ts';
import { TABLE } from './static-chains.ts';

const CHAIN_PURPOSES: Readonly<Record<string, string>> = {
  services:
    'finds the Service of the destination: port, then port range, then all ports, then node port',
  'nat-prerouting': 'translates packets that arrive',
  'nat-output': 'translates packets that this node sends',
  'nat-input-affinity': 'records session affinity',
  'nat-postrouting-affinity': 'records session affinity',
  'nat-postrouting': 'masquerades marked and hairpin connections',
  'filter-input': 'handles packets to VIPs that were not translated, addressed to this node',
  'filter-forward': 'handles packets to VIPs that were not translated, to be forwarded',
  'filter-output': 'handles packets to VIPs that were not translated, sent by this node',
  'drop-port-zero': 'drops packets to port 0',
  'update-affinity': 'records session affinity',
  'service-endpoints-check': 'rejects or drops packets to VIPs without an endpoint for the client',
  'cluster-ips-check': 'rejects packets to ports of cluster IPs that no Service lists',
  'owned-prerouting': 'finds packets of UDP ports that pods own, before connection tracking',
  'owned-output': 'finds packets of UDP ports that pods own, before connection tracking',
  'owned-restricted-prerouting':
    'finds UDP packets to VIPs with loadBalancerSourceRanges whose ports pods own',
  'owned-restricted-output':
    'finds UDP packets to VIPs with loadBalancerSourceRanges whose ports pods own',
  'owned-input': 'lets owners speak as the VIP to processes of this node',
  'owned-postrouting': 'lets owners speak as the VIP',
  'owned-reject-allowed':
    'rejects packets to owned ports without owner; drops packets from sources outside loadBalancerSourceRanges',
  'filter-forward-flowtable':
    'lets established connections of Services bypass the rules from now on',
  'offload-connection': 'lets established connections of Services bypass the rules from now on',
  'reject-packet': 'rejects the packet',
  'reset-or-drop-packet': 'resets established TCP connections and drops other packets',
};

/** By the start of the name, see `chains.ts`. */
const PREFIX_PURPOSES: readonly (readonly [prefix: string, purpose: string])[] = [
  [
    'internal-',
    'selects an endpoint for clients of a cluster IP, and marks others than pods for masquerade',
  ],
  ['external-local-', 'selects an endpoint by externalTrafficPolicy Local'],
  [
    'external-',
    'selects an endpoint for clients of an external address or node port, and marks them for masquerade',
  ],
  ['select-endpoint-', 'selects an endpoint for pods and this node'],
  ['owned-prerouting-', 'finds packets of UDP ports that pods own, before connection tracking'],
  ['owned-output-', 'finds packets of UDP ports that pods own, before connection tracking'],
  ['owned-input-', 'lets owners speak as the VIP to processes of this node'],
  ['owned-postrouting-', 'lets owners speak as the VIP'],
  ['owned-destinations-', 'sends untracked UDP packets to the owner of the port'],
  [
    'owned-restricted-',
    'sends untracked UDP packets from allowed sources to the owner of the port',
  ],
  ['owned-sources-', 'exempts UDP packets that owners send from connection tracking'],
  ['owned-speakers-', 'replaces the source of UDP packets from owned ports by the VIP'],
  ['owned-tracked-', 'translates TCP and SCTP packets to the owner of the port'],
  ['ranges-', 'finds the Service of a port range'],
  [
    'no-endpoint-ranges-',
    'rejects or drops packets to port ranges without an endpoint for the client',
  ],
  ['affinity-ranges-', 'records session affinity of port ranges'],
  ['firewall-', 'lets only sources in loadBalancerSourceRanges continue'],
  ['update-affinity-', 'records session affinity'],
  ['reject-localhost-', 'rejects packets to node ports on the loopback address'],
];

const REWRITES = [
  [' daddr set ', 'destination'],
  [' saddr set ', 'source'],
] as const;

/** @param chains the chains of the table, by name. @returns undefined for a rule of another table. */
export function describeNftRule(
  { table, chain: name, index }: KernelRule,
  chains: Iterable<NftChain>,
): RulePurpose | undefined {
  if (table !== TABLE) return undefined;
  const purpose =
    CHAIN_PURPOSES[name] ??
    PREFIX_PURPOSES.find(([prefix]) => name.startsWith(prefix))?.[1] ??
    'a chain of an earlier version';
  const chain = [...chains].find((each) => each.name === name);
  const rule = index === undefined ? undefined : chain?.rules[index];
  const text = rule && nftRuleText(rule);
  const rewrites = REWRITES.find(([pattern]) => text?.includes(pattern))?.[1];
  return { purpose, text, ...(rewrites && { rewrites }), service: undefined };
}
