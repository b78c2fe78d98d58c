/** Terms that the files of model/ share with each other and with compile/. */

export type Direction = 'ingress' | 'egress';
export const DIRECTIONS: readonly Direction[] = ['ingress', 'egress'];

/** A list of peers, or of ports, that rules share. Never used again while the agent runs. */
export type ListId = number;

/** Where the addresses of a list of peers are: of pods and nodes, in CIDRs, of domain names. */
export type PeerSetName = 'peers' | 'networks' | 'learned';
export type PortSetName = 'ports' | 'named-ports';

/** What becomes of a packet that a rule matches. */
export type RuleVerdict =
  | 'allow'
  /** On to NetworkPolicies, and what comes after them. */
  | 'pass'
  /** Denied by a rule, or by isolation, of this tier. */
  | 'deny-admin'
  | 'deny-network-policy'
  | 'deny-baseline';
