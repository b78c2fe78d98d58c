/**
 * The chains of profiles. They are jumped to from a base chain, and what is allowed returns there.
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
export interface ProfileLine extends Line {
  readonly origin: ChainRule | undefined;
}

/** A chain of a profile. */
export interface ProfilePart extends PolicyChain {
  readonly lines: Iterable<ProfileLine>;
}

/** The chain that packets of pods with a profile are led to. */
export function profileChainName(direction: Direction, profile: number): string {
  return `${direction}-${profile}`;
}

/** All chains that a profile may have in a direction. */
export function profileChainNames(direction: Direction, profile: number): [string, string] {
  const name = profileChainName(direction, profile);
  return [name, `${name}-rest`];
}

/** The chains of a profile, the one that packets are led to first. Lines are made as they are asked for. */
export function profileChains(profile: PolicySetChain, family: IpFamily): ProfilePart[] {
  const { direction, admin, rest } = profile;
  const [name, restName] = profileChainNames(direction, profile.profile);
  const ways = waysOf(direction, family);
  const isSplit = rest.length > 0 && admin.some(({ outcome }) => outcome === 'pass');
  if (!isSplit) return [{ name, lines: linesOf([...admin, ...rest], direction, ways, RETURN) }];
  const onward = goTo(restName);
  return [
    {
      name,
      lines: followedBy(linesOf(admin, direction, ways, onward), {
        rule: [onward],
        origin: undefined,
      }),
    },
    { name: restName, lines: linesOf(rest, direction, ways, RETURN) },
  ];
}

/** How rules look things up in one direction and family. */
interface Ways {
  readonly isIn: (key: Key, set: string) => Part;
  /** What is looked up in a set beside the number of the list. */
  readonly peer: Key;
  readonly portKeys: Readonly<Record<'ports' | 'named-ports', Key>>;
}

function waysOf(direction: Direction, family: IpFamily): Ways {
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
  ways: Ways,
  pass: Part,
): Iterable<ProfileLine> {
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
    for (const conditions of conditionsOf(origin, ways)) {
      yield { rule: [...conditions, end], comment, origin };
    }
  }
}

/** In nf_tables a rule looks up in one set after the other, and never in one or the other. */
function* conditionsOf({ peers, ports }: ChainRule, ways: Ways): Iterable<Rule> {
  const byPeer: Rule[] = peers?.sets.map((set) => [
    ways.isIn([listNumber(peers.number), ...ways.peer], set),
  ]) ?? [[]];
  const byPort: Rule[] = ports?.sets.map((set) => [
    ways.isIn([listNumber(ports.number), ...ways.portKeys[set]], set),
  ]) ?? [[]];
  for (const peer of byPeer) {
    for (const port of byPort) yield [...peer, ...port];
  }
}

function verdictOf(outcome: Outcome, direction: Direction, pass: Part): Part {
  if (outcome === 'allow') return RETURN;
  return outcome === 'pass' ? pass : goTo(denyChain(outcome satisfies Denial, direction));
}

function* followedBy<T>(items: Iterable<T>, last: T): Iterable<T> {
  yield* items;
  yield last;
}
