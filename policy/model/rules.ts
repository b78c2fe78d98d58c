import type { Policy, PolicyRule } from '../../api/policy-objects.ts';
import type { Lists, PeerList, PortList } from './lists.ts';
import type { ChainRule, Direction, Outcome } from './shape.ts';

/** A rule of a chain, and where it comes from. */
export interface CompiledRule {
  readonly rule: ChainRule;
  readonly policy: Policy;
  readonly source: PolicyRule;
  readonly peers: PeerList | undefined;
  readonly ports: PortList | undefined;
}

/** Those rules of a policy that can match anything. The caller releases the lists. */
export function compileRules(policy: Policy, direction: Direction, lists: Lists): CompiledRule[] {
  return (policy[direction] ?? [])
    .filter(({ peers, ports }) => peers?.length !== 0 && ports?.length !== 0)
    .map((source) => {
      const peers = source.peers && lists.peers(source.peers);
      const ports = source.ports && lists.ports(direction, source.peers, source.ports);
      const rule: ChainRule = {
        peers: peers && { list: peers.number, sets: peers.sets },
        ports: ports && { list: ports.number, sets: ports.sets },
        outcome: outcomeOf(policy, source),
        comment: `${policy.kind} ${policy.key} ${source.path}`,
      };
      return { rule, policy, source, peers, ports };
    });
}

export function releaseRules(rules: readonly CompiledRule[], lists: Lists): void {
  for (const { peers, ports } of rules) {
    if (peers !== undefined) lists.release(peers);
    if (ports !== undefined) lists.release(ports);
  }
}

/** Whether two rules are the same to the kernel. */
export function isSameRule(a: ChainRule, b: ChainRule): boolean {
  return (
    a.peers?.list === b.peers?.list &&
    a.ports?.list === b.ports?.list &&
    a.outcome === b.outcome &&
    a.comment === b.comment
  );
}

function outcomeOf({ tier }: Policy, { action }: PolicyRule): Outcome {
  if (action === 'Allow') return 'allow';
  if (action === 'Pass') return tier === 'Admin' ? 'pass' : 'allow'; // Behind Baseline is the default.
  if (tier === 'Admin') return 'deny-admin';
  return tier === 'Baseline' ? 'deny-baseline' : 'deny-network-policy';
}
