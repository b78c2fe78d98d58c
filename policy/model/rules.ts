/** Rules of policies, with their peers and ports as lists that rules share. */
import type { Policy, PolicyRule } from '../../api/policy-objects.ts';
import type { PeerList, PortList, RuleLists } from './rule-lists.ts';
import type { Direction, RuleVerdict } from './terms.ts';

/** A rule that can match something, and where it comes from. */
export interface PolicySetRule {
  /** undefined: all. */
  readonly peers: PeerList | undefined;
  /** undefined: all ports of all protocols. */
  readonly ports: PortList | undefined;
  readonly outcome: RuleVerdict;
  /** `NetworkPolicy default/web spec.egress[0]` */
  readonly comment: string;
  readonly policy: Policy;
  readonly source: PolicyRule;
}

/** Those rules of a policy that can match anything. The caller releases the lists. */
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
      outcome: ruleVerdict(policy, source),
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
  if (action === 'Pass') return tier === 'Admin' ? 'pass' : 'allow'; // Behind Baseline is the default.
  if (tier === 'Admin') return 'deny-admin';
  return tier === 'Baseline' ? 'deny-baseline' : 'deny-network-policy';
}
