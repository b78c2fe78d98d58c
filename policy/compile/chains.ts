/**
 * The chains of policy sets. They are jumped to from a base chain, and what is allowed returns there.
 * Where the Admin tier may pass on to the others, these are a second chain, `egress-7-rest`.
 */
import type { IpFamily } from '../../api/objects.ts';
import {
  goTo,
  type LookupKey,
  type RulePart,
  type RuleParts,
  rulePartsFor,
} from '../../nft/rule.ts';
import type { Direction, RuleVerdict } from '../model/terms.ts';
import type { CompiledRule, PolicySetChain } from './change.ts';
import { jumpTo, listId, RETURN } from './expressions.ts';
import {
  type DenyVerdict,
  denyChain,
  type TableChain,
  type TableRule,
  unparsablePortsChain,
} from './policy-table.ts';

/** A line of a chain, and the rule that it is of. */
export interface KernelRule extends TableRule {
  readonly origin: CompiledRule | undefined;
}

/** A chain of a policy set. */
export interface KernelChain extends TableChain {
  readonly lines: Iterable<KernelRule>;
}

/** All chains that a policy set may have. Packets of its pods are led to the first. */
export function kernelChainNames(direction: Direction, profile: number): [string, string] {
  return [`${direction}-${profile}`, `${direction}-${profile}-rest`];
}

/** The chains of a policy set, the one that packets are led to first. Lines are made as they are asked for. */
export function kernelChains(
  { direction, profile, admin, lowerTiers: rest }: PolicySetChain,
  family: IpFamily,
): KernelChain[] {
  const [name, restName] = kernelChainNames(direction, profile);
  const lookups = lookupsOf(direction, family);
  const isSplit = rest.length > 0 && admin.some(({ outcome }) => outcome === 'pass');
  if (!isSplit) return [{ name, lines: rulesOf([...admin, ...rest], direction, lookups, RETURN) }];
  return [
    { name, lines: withFinalGoto(rulesOf(admin, direction, lookups, goTo(restName)), restName) },
    { name: restName, lines: rulesOf(rest, direction, lookups, RETURN) },
  ];
}

function* withFinalGoto(lines: Iterable<KernelRule>, chain: string): Iterable<KernelRule> {
  yield* lines;
  yield { rule: [goTo(chain)], origin: undefined };
}

/** How rules look things up in one direction and family. */
interface Lookups {
  readonly isIn: (key: LookupKey, set: string) => RulePart;
  /** What is looked up in a set beside the number of the list. */
  readonly peer: LookupKey;
  readonly portKeys: Readonly<Record<'ports' | 'named-ports', LookupKey>>;
}

function lookupsOf(direction: Direction, family: IpFamily): Lookups {
  const { source, destination, protocol, port, inSet } = rulePartsFor(family);
  return {
    isIn: inSet,
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
  let isReadable = false;
  for (const origin of rules) {
    const { outcome, ports, comment } = origin;
    // A packet whose ports cannot be read would go on as if it had other ports than are denied.
    if (ports !== undefined && outcome !== 'allow' && !isReadable) {
      const denial = outcome === 'pass' ? 'deny-admin' : outcome;
      const rule = [jumpTo(unparsablePortsChain(denial, direction))];
      yield { rule, comment: 'ports that cannot be read', origin };
      isReadable = true;
    }
    const end = verdictOf(outcome, direction, pass);
    for (const conditions of conditionsOf(origin, lookups)) {
      yield { rule: [...conditions, end], comment, origin };
    }
  }
}

/** In nf_tables a rule looks up in one set after the other, and never in one or the other. */
function* conditionsOf({ peers, ports }: CompiledRule, lookups: Lookups): Iterable<RuleParts> {
  const byPeer: RuleParts[] = peers?.sets.map((set) => [
    lookups.isIn([listId(peers.number), ...lookups.peer], set),
  ]) ?? [[]];
  const byPort: RuleParts[] = ports?.sets.map((set) => [
    lookups.isIn([listId(ports.number), ...lookups.portKeys[set]], set),
  ]) ?? [[]];
  for (const peer of byPeer) {
    for (const port of byPort) yield [...peer, ...port];
  }
}

function verdictOf(outcome: RuleVerdict, direction: Direction, pass: RulePart): RulePart {
  if (outcome === 'allow') return RETURN;
  return outcome === 'pass' ? pass : goTo(denyChain(outcome satisfies DenyVerdict, direction));
}
