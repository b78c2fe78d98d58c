/** Types that all folders of policy/ use. */

export type Direction = 'ingress' | 'egress';
export const DIRECTIONS: readonly Direction[] = ['ingress', 'egress'];

/** Id of a peer list or port list. Never reused while the agent runs. */
export type ListId = number;

/**
 * nft sets with members of peer lists: addresses of pods and nodes, CIDRs, resolved domain names.
 */
export type PeerSetName = 'peers' | 'networks' | 'fqdn-peers';
export type PortSetName = 'ports' | 'named-ports';

/** What a rule does with the packets that it matches. */
export type RuleVerdict =
  | 'allow'
  /** Skip the rest of the Admin tier; continue with NetworkPolicies or the Baseline tier. */
  | 'pass'
  /** Denied by a rule of this tier, or by the default deny of NetworkPolicies. */
  | 'deny-admin'
  | 'deny-network-policy'
  | 'deny-baseline';
