/** Rules of policies, with their peers and ports as lists that rules share. */
import type { Policy, PolicyRule } from '../../api/policy-objects.ts';
import type { Lists, PeerList, PortList } from './lists.ts';
import type { Direction, Outcome } from './terms.ts';

/** A rule that can match something, and where it comes from. */
export interface Rule {
  /** undefined: all. */
  readonly peers: PeerList | undefined;
  /** undefined: all ports of all protocols. */
  readonly ports: PortList | undefined;
  readonly outcome: Outcome;
  /** `NetworkPolicy default/web spec.egress[0]` */
  readonly comment: string;
  readonly policy: Policy;
  readonly source: PolicyRule;
}

/** Those rules of a policy that can match anything. The caller releases the lists. */
export function acquireRules(policy: Policy, direction: Direction, lists: Lists): Rule[] {
  return (policy[direction] ?? [])
    .filter(({ peers, ports }) => peers?.length !== 0 && ports?.length !== 0)
    .map((source) => ({
      peers: source.peers && lists.peers(source.peers),
      ports: source.ports && lists.ports(direction, source.peers, source.ports),
      outcome: outcomeOf(policy, source),
      comment: `${policy.kind} ${policy.key} ${source.path}`,
      policy,
      source,
    }));
}

export function releaseRules(rules: readonly Rule[], lists: Lists): void {
  for (const { peers, ports } of rules) {
    if (peers !== undefined) lists.release(peers);
    if (ports !== undefined) lists.release(ports);
  }
}

function outcomeOf({ tier }: Policy, { action }: PolicyRule): Outcome {
  if (action === 'Allow') return 'allow';
  if (action === 'Pass') return tier === 'Admin' ? 'pass' : 'allow'; // Behind Baseline is the default.
  if (tier === 'Admin') return 'deny-admin';
  return tier === 'Baseline' ? 'deny-baseline' : 'deny-network-policy';
}
