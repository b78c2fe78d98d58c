/** The chain of a policy set, with the default deny of a pod that NetworkPolicies isolate. */
import type { PolicySetRules } from '../model/policy-sets.ts';
import type { Direction } from '../model/terms.ts';
import type { CompiledRule, PolicySetChain } from './change.ts';

const DEFAULT_DENY: CompiledRule = {
  peers: undefined,
  ports: undefined,
  outcome: 'deny-network-policy',
  comment: 'isolated by NetworkPolicy',
};

export function policySetChain(
  direction: Direction,
  profile: number,
  { admin, lowerTiers: rest, isolatedBy }: PolicySetRules,
): PolicySetChain {
  return {
    direction,
    profile,
    admin,
    lowerTiers: isolatedBy.length > 0 ? [...rest, DEFAULT_DENY] : rest,
  };
}

/** Whether two chains are the same to the kernel. */
export function isSamePolicySetChain(a: PolicySetChain, b: PolicySetChain): boolean {
  return areSameRules(a.admin, b.admin) && areSameRules(a.lowerTiers, b.lowerTiers);
}

function areSameRules(all: readonly CompiledRule[], others: readonly CompiledRule[]): boolean {
  return all.length === others.length && all.every((rule, at) => isSameRule(rule, others[at]));
}

function isSameRule(a: CompiledRule, b: CompiledRule | undefined): boolean {
  return (
    a.peers?.number === b?.peers?.number &&
    a.ports?.number === b?.ports?.number &&
    a.outcome === b?.outcome &&
    a.comment === b.comment
  );
}
