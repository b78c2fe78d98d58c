/** Rules of policies. Their peers and ports are shared lists. */
import type { Policy, PolicyRule } from '../../api/policy-objects.ts';
import type { PeerList, PortList, RuleLists } from './rule-lists.ts';
import type { Direction, RuleVerdict } from './terms.ts';

/** A rule of a policy with its peer list and port list. */
export interface PolicySetRule {
  /** undefined: all peers. */
  readonly peers: PeerList | undefined;
  /** undefined: all ports of all protocols. */
  readonly ports: PortList | undefined;
  readonly verdict: RuleVerdict;
  /** Policy and path of the rule, such as `NetworkPolicy default/web spec.egress[0]`. */
  readonly comment: string;
  readonly policy: Policy;
  readonly source: PolicyRule;
}

/**
 * Rules of a policy in one direction. Omits rules with an empty list of peers or ports, which match
 * nothing. The caller must release the lists.
 */
export function acquireRules(
  policy: Policy,
  direction: Direction,
  lists: RuleLists,
): PolicySetRule[] {
  return (policy[direction] ?? [])
    .filter(({ peers, ports }) => peers?.length !== 0 && ports?.length !== 0)
    .map((source) => ({
      peers: source.peers && lists.peers(source.peers),
      ports: source.ports && lists.ports(direction, source.peers, source.ports),
      verdict: ruleVerdict(policy, source),
      comment: `${policy.kind} ${policy.key} ${source.path}`,
      policy,
      source,
    }));
}

export function releaseRules(rules: readonly PolicySetRule[], lists: RuleLists): void {
  for (const { peers, ports } of rules) {
    if (peers !== undefined) lists.release(peers);
    if (ports !== undefined) lists.release(ports);
  }
}

function ruleVerdict({ tier }: Policy, { action }: PolicyRule): RuleVerdict {
  if (action === 'Allow') return 'allow';
  // After the Baseline tier, the default is to allow.
  if (action === 'Pass') return tier === 'Admin' ? 'pass' : 'allow';
  if (tier === 'Admin') return 'deny-admin';
  return tier === 'Baseline' ? 'deny-baseline' : 'deny-network-policy';
}
