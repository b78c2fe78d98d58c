/** Compiles a policy set. Adds the default deny if NetworkPolicies isolate the pods. */
import type { PolicySetRules } from '../model/policy-sets.ts';
import type { Direction, ListId } from '../model/terms.ts';
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

/** A chain whose rules refer to peer lists by other ids in the set `networks`. */
export function withNetworksIds(
  chain: PolicySetChain,
  ids: ReadonlyMap<ListId, ListId>,
): PolicySetChain {
  const renumbered = (rules: readonly CompiledRule[]) =>
    rules.map((rule) => {
      const networksId = rule.peers && ids.get(rule.peers.id);
      if (rule.peers === undefined || networksId === rule.peers.networksId) return rule;
      return { ...rule, peers: { ...rule.peers, networksId } };
    });
  return { ...chain, admin: renumbered(chain.admin), lowerTiers: renumbered(chain.lowerTiers) };
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
    a.peers?.networksId === b?.peers?.networksId &&
    a.ports?.id === b?.ports?.id &&
    a.verdict === b?.verdict &&
    a.comment === b.comment
  );
}
