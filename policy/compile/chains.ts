/**
 * The nft chains of policy sets. A base chain jumps to a policy set's chain; allowed packets return
 * to the base chain. If an Admin rule has the action Pass, the lower tiers get a second chain, for
 * example `egress-7-lower-tiers`.
 */
import type { IpFamily } from '../../api/objects.ts';
import {
  goTo,
  type LookupKey,
  RETURN,
  type RulePart,
  type RuleParts,
  rulePartsFor,
} from '../../nft/rule.ts';
import type { Direction, RuleVerdict } from '../model/terms.ts';
import { type CompiledRule, idIn, type PolicySetChain } from './change.ts';
import { jumpTo, listId } from './expressions.ts';
import {
  type DenyVerdict,
  denyChain,
  type TableChain,
  type TableRule,
  unparsablePortsChain,
} from './policy-table.ts';

/** An nft rule and the policy rule that it was compiled from. */
export interface KernelRule extends TableRule {
  readonly source: CompiledRule | undefined;
}

/** An nft chain of a policy set. */
export interface KernelChain extends TableChain {
  readonly rules: Iterable<KernelRule>;
}

/**
 * Names of the chains that a policy set can have: the first chain, and the chain of the lower
 * tiers.
 */
export function kernelChainNames(direction: Direction, policySetId: number): [string, string] {
  return [`${direction}-${policySetId}`, `${direction}-${policySetId}-lower-tiers`];
}

/** The chains of a policy set. The pod maps jump to the first chain. Rules are generated lazily. */
export function kernelChains(
  { direction, policySetId, admin, lowerTiers }: PolicySetChain,
  family: IpFamily,
): KernelChain[] {
  const [name, lowerName] = kernelChainNames(direction, policySetId);
  const lookups = lookupsOf(direction, family);
  const isSplit = lowerTiers.length > 0 && admin.some(({ verdict }) => verdict === 'pass');
  if (!isSplit) {
    return [{ name, rules: rulesOf([...admin, ...lowerTiers], direction, lookups, RETURN) }];
  }
  return [
    { name, rules: withFinalGoto(rulesOf(admin, direction, lookups, goTo(lowerName)), lowerName) },
    { name: lowerName, rules: rulesOf(lowerTiers, direction, lookups, RETURN) },
  ];
}

function* withFinalGoto(rules: Iterable<KernelRule>, chain: string): Iterable<KernelRule> {
  yield* rules;
  yield { rule: [goTo(chain)], source: undefined };
}

/**
 * Set lookups for one direction and IP family. The key fields exclude the list id, the first field
 * of every key.
 */
interface Lookups {
  readonly inSet: (key: LookupKey, set: string) => RulePart;
  readonly peer: LookupKey;
  readonly portKeys: Readonly<Record<'ports' | 'named-ports', LookupKey>>;
}

function lookupsOf(direction: Direction, family: IpFamily): Lookups {
  const { source, destination, protocol, port, inSet } = rulePartsFor(family);
  return {
    inSet,
    peer: [direction === 'egress' ? destination : source],
    portKeys: {
      ports: [protocol, port],
      'named-ports': [destination, protocol, port],
    },
  };
}

function* rulesOf(
  rules: readonly CompiledRule[],
  direction: Direction,
  lookups: Lookups,
  pass: RulePart,
): Iterable<KernelRule> {
  let hasPortCheck = false;
  for (const source of rules) {
    const { verdict, ports, comment } = source;
    // Drop packets with unparsable ports before the first deny or pass rule with ports. Such a
    // packet matches no rule with ports, so it would skip the deny or pass rule.
    if (ports !== undefined && verdict !== 'allow' && !hasPortCheck) {
      const denial = verdict === 'pass' ? 'deny-admin' : verdict;
      const rule = [jumpTo(unparsablePortsChain(denial, direction))];
      yield { rule, comment: 'drop packets with unparsable ports', source };
      hasPortCheck = true;
    }
    const end = verdictPart(verdict, direction, pass);
    for (const conditions of conditionsOf(source, lookups)) {
      yield { rule: [...conditions, end], comment, source };
    }
  }
}

/**
 * Lookups in one nft rule are ANDed. A policy rule whose peers or ports are in several sets becomes
 * several nft rules.
 */
function* conditionsOf({ peers, ports }: CompiledRule, lookups: Lookups): Iterable<RuleParts> {
  const byPeer: RuleParts[] = peers?.sets.map((set) => [
    lookups.inSet([listId(idIn(set, peers)), ...lookups.peer], set),
  ]) ?? [[]];
  const byPort: RuleParts[] = ports?.sets.map((set) => [
    lookups.inSet([listId(ports.id), ...lookups.portKeys[set]], set),
  ]) ?? [[]];
  for (const peer of byPeer) {
    for (const port of byPort) yield [...peer, ...port];
  }
}

function verdictPart(verdict: RuleVerdict, direction: Direction, pass: RulePart): RulePart {
  if (verdict === 'allow') return RETURN;
  return verdict === 'pass' ? pass : goTo(denyChain(verdict satisfies DenyVerdict, direction));
}
