/**
 * The chains of policy sets. They are jumped to from a base chain, and what is allowed returns there.
 * Where the Admin tier may pass on to the others, these are a second chain, `egress-7-rest`.
 */
import type { IpFamily } from '../../api/objects.ts';
import { goTo, type Key, type Part, partsOf, type Rule } from '../../nft/rule.ts';
import type { Direction, Outcome } from '../model/terms.ts';
import type { ChainRule, PolicySetChain } from './change.ts';
import { jumpTo, listNumber, RETURN } from './expressions.ts';
import {
  type Denial,
  denyChain,
  type Line,
  type PolicyChain,
  unreadableChain,
} from './skeleton.ts';

/** A line of a chain, and the rule that it is of. */
export interface KernelLine extends Line {
  readonly origin: ChainRule | undefined;
}

/** A chain of a policy set. */
export interface KernelChain extends PolicyChain {
  readonly lines: Iterable<KernelLine>;
}

/** All chains that a policy set may have. Packets of its pods are led to the first. */
export function kernelChainNames(direction: Direction, profile: number): [string, string] {
  return [`${direction}-${profile}`, `${direction}-${profile}-rest`];
}

/** The chains of a policy set, the one that packets are led to first. Lines are made as they are asked for. */
export function kernelChains(
  { direction, profile, admin, rest }: PolicySetChain,
  family: IpFamily,
): KernelChain[] {
  const [name, restName] = kernelChainNames(direction, profile);
  const lookups = lookupsOf(direction, family);
  const isSplit = rest.length > 0 && admin.some(({ outcome }) => outcome === 'pass');
  if (!isSplit) return [{ name, lines: linesOf([...admin, ...rest], direction, lookups, RETURN) }];
  return [
    { name, lines: onwardLines(linesOf(admin, direction, lookups, goTo(restName)), restName) },
    { name: restName, lines: linesOf(rest, direction, lookups, RETURN) },
  ];
}

function* onwardLines(lines: Iterable<KernelLine>, chain: string): Iterable<KernelLine> {
  yield* lines;
  yield { rule: [goTo(chain)], origin: undefined };
}

/** How rules look things up in one direction and family. */
interface Lookups {
  readonly isIn: (key: Key, set: string) => Part;
  /** What is looked up in a set beside the number of the list. */
  readonly peer: Key;
  readonly portKeys: Readonly<Record<'ports' | 'named-ports', Key>>;
}

function lookupsOf(direction: Direction, family: IpFamily): Lookups {
  const { source, destination, protocol, port, isIn } = partsOf(family);
  return {
    isIn,
    peer: [direction === 'egress' ? destination : source],
    portKeys: {
      ports: [protocol, port],
      'named-ports': [destination, protocol, port],
    },
  };
}

function* linesOf(
  rules: readonly ChainRule[],
  direction: Direction,
  lookups: Lookups,
  pass: Part,
): Iterable<KernelLine> {
  let isReadable = false;
  for (const origin of rules) {
    const { outcome, ports, comment } = origin;
    // A packet whose ports cannot be read would go on as if it had other ports than are denied.
    if (ports !== undefined && outcome !== 'allow' && !isReadable) {
      const denial = outcome === 'pass' ? 'deny-admin' : outcome;
      const rule = [jumpTo(unreadableChain(denial, direction))];
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
function* conditionsOf({ peers, ports }: ChainRule, lookups: Lookups): Iterable<Rule> {
  const byPeer: Rule[] = peers?.sets.map((set) => [
    lookups.isIn([listNumber(peers.number), ...lookups.peer], set),
  ]) ?? [[]];
  const byPort: Rule[] = ports?.sets.map((set) => [
    lookups.isIn([listNumber(ports.number), ...lookups.portKeys[set]], set),
  ]) ?? [[]];
  for (const peer of byPeer) {
    for (const port of byPort) yield [...peer, ...port];
  }
}

function verdictOf(outcome: Outcome, direction: Direction, pass: Part): Part {
  if (outcome === 'allow') return RETURN;
  return outcome === 'pass' ? pass : goTo(denyChain(outcome satisfies Denial, direction));
}
