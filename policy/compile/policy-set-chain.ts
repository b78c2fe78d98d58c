/** The chain of a policy set, with the default deny of a pod that NetworkPolicies isolate. */
import type { PolicySetRules } from '../model/policy-sets.ts';
import type { Direction } from '../model/terms.ts';
import type { ChainRule, PolicySetChain } from './change.ts';

const DEFAULT_DENY: ChainRule = {
  peers: undefined,
  ports: undefined,
  outcome: 'deny-network-policy',
  comment: 'isolated by NetworkPolicy',
};

export function policySetChain(
  direction: Direction,
  profile: number,
  { admin, rest, isolatedBy }: PolicySetRules,
): PolicySetChain {
  return {
    direction,
    profile,
    admin,
    rest: isolatedBy.length > 0 ? [...rest, DEFAULT_DENY] : rest,
  };
}

/** Whether two chains are the same to the kernel. */
export function isSameChain(a: PolicySetChain, b: PolicySetChain): boolean {
  return areSameRules(a.admin, b.admin) && areSameRules(a.rest, b.rest);
}

function areSameRules(all: readonly ChainRule[], others: readonly ChainRule[]): boolean {
  return all.length === others.length && all.every((rule, at) => isSameRule(rule, others[at]));
}

function isSameRule(a: ChainRule, b: ChainRule | undefined): boolean {
  return (
    a.peers?.number === b?.peers?.number &&
    a.ports?.number === b?.ports?.number &&
    a.outcome === b?.outcome &&
    a.comment === b.comment
  );
}
