/** Compiles a policy set. Adds the default deny if NetworkPolicies isolate the pods. */
import type { PolicySetRules } from '../model/policy-sets.ts';
import type { Direction } from '../model/terms.ts';
import type { CompiledRule, PolicySetChain } from './change.ts';

const DEFAULT_DENY: CompiledRule = {
  peers: undefined,
  ports: undefined,
  verdict: 'deny-network-policy',
  comment: 'default deny: isolated by NetworkPolicy',
};

export function policySetChain(
  direction: Direction,
  policySetId: number,
  { admin, lowerTiers, isolatedBy }: PolicySetRules,
): PolicySetChain {
  return {
    direction,
    policySetId,
    admin,
    lowerTiers: isolatedBy.length > 0 ? [...lowerTiers, DEFAULT_DENY] : lowerTiers,
  };
}

/** Whether two policy sets compile to the same kernel rules. */
export function isSamePolicySetChain(a: PolicySetChain, b: PolicySetChain): boolean {
  return areSameRules(a.admin, b.admin) && areSameRules(a.lowerTiers, b.lowerTiers);
}

function areSameRules(all: readonly CompiledRule[], others: readonly CompiledRule[]): boolean {
  return all.length === others.length && all.every((rule, at) => isSameRule(rule, others[at]));
}

function isSameRule(a: CompiledRule, b: CompiledRule | undefined): boolean {
  return (
    a.peers?.id === b?.peers?.id &&
    a.ports?.id === b?.ports?.id &&
    a.verdict === b?.verdict &&
    a.comment === b.comment
  );
}
