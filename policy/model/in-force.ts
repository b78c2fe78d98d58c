import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import type { PortRange } from '../../api/ports.ts';
import { protocolNumbers } from '../../netlink/core/protocol.ts';
import { elementsOf, type Facts, NO_FACTS, without } from './facts.ts';
import type { FamilyRanges } from './networks.ts';
import { addressText, missing, type Range } from './ranges.ts';
import { isSameRule } from './rules.ts';
import type {
  ChainRule,
  ListNumber,
  PolicyChange,
  PolicyElement,
  PolicyState,
  ProfileChain,
} from './shape.ts';

/** Members of a list that are ranges. */
export interface ListRanges {
  readonly networks: FamilyRanges;
  readonly ports: readonly PortRange[];
}

/** What is to be in force next, of all that may differ from what is. */
export interface NextStep {
  /** undefined: no rule names it. */
  readonly lists: ReadonlyMap<ListNumber, ListRanges | undefined>;
  readonly facts: ReadonlyMap<string, Facts>;
  /** By profile. */
  readonly chains: ReadonlyMap<number, ProfileChain | undefined>;
  /** Whether rules name a list. */
  readonly isLive: (list: ListNumber) => boolean;
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] extends readonly (infer E)[] ? E[] : T[K] };

/** What the kernel was given: nothing in the beginning. */
export class InForce {
  readonly #families: readonly IpFamily[];
  readonly #lists = new Map<ListNumber, ListRanges>();
  readonly #facts = new Map<string, Facts>();
  readonly #chains = new Map<number, ProfileChain>();

  constructor(families: readonly IpFamily[]) {
    this.#families = families;
  }

  /** What families that are concerned have to do to get there. From now on that is in force. */
  advance({ lists, facts, chains, isLive }: NextStep): PolicyChange[] {
    const changes = new Map(this.#families.map((family) => [family, noChange(family)]));
    for (const [number, now] of lists) {
      const before = this.#lists.get(number);
      for (const change of changes.values()) changeList(change, number, before, now);
      if (now === undefined) this.#lists.delete(number);
      else this.#lists.set(number, now);
    }
    for (const [address, now] of facts) {
      const change = changes.get(familyOf(address));
      const before = this.#facts.get(address) ?? NO_FACTS;
      if (change === undefined || before === now) continue;
      for (const element of elementsOf(address, without(before, now))) {
        const isDropped = 'list' in element && !isLive(element.list);
        (isDropped ? change.discard : change.remove).push(element);
      }
      change.add.push(...elementsOf(address, without(now, before)));
      if (now === NO_FACTS) this.#facts.delete(address);
      else this.#facts.set(address, now);
    }
    for (const [profile, now] of chains) this.#changeChain(changes.values(), profile, now);
    return [...changes.values()].filter(isChange);
  }

  all(family: IpFamily): PolicyState {
    return { chains: [...this.#chains.values()], elements: this.#elements(family) };
  }

  *#elements(family: IpFamily): Iterable<PolicyElement> {
    for (const [number, ranges] of this.#lists) yield* rangeElements(number, ranges, family);
    for (const [address, facts] of this.#facts) {
      if (familyOf(address) === family) yield* elementsOf(address, facts);
    }
  }

  #changeChain(
    changes: Iterable<Mutable<PolicyChange>>,
    profile: number,
    now: ProfileChain | undefined,
  ): void {
    const before = this.#chains.get(profile);
    if (now === undefined) {
      if (before === undefined) return;
      const { direction } = before;
      for (const change of changes) change.discardChains.push({ direction, profile });
      this.#chains.delete(profile);
    } else if (before === undefined || !isSameChain(before, now)) {
      for (const change of changes) change.chains.push(now);
      this.#chains.set(profile, now);
    }
  }
}

function changeList(
  change: Mutable<PolicyChange>,
  number: ListNumber,
  before: ListRanges | undefined,
  now: ListRanges | undefined,
): void {
  const { family } = change;
  if (before === undefined) {
    if (now !== undefined) change.prepare.push(...rangeElements(number, now, family));
    return;
  }
  if (now === undefined) {
    change.discard.push(...rangeElements(number, before, family));
    return;
  }
  const [old, fresh] = [before.networks[family], now.networks[family]];
  change.remove.push(...networkElements(number, missing(old, fresh), family));
  change.add.push(...networkElements(number, missing(fresh, old), family));
}

function* rangeElements(
  list: ListNumber,
  { networks, ports }: ListRanges,
  family: IpFamily,
): Iterable<PolicyElement> {
  for (const { protocol, from, to } of ports) {
    yield { set: 'ports', list, protocol: protocolNumbers[protocol], first: from, last: to };
  }
  yield* networkElements(list, networks[family], family);
}

function* networkElements(
  list: ListNumber,
  ranges: readonly Range[],
  family: IpFamily,
): Iterable<PolicyElement> {
  for (const { first, last } of ranges) {
    yield {
      set: 'networks',
      list,
      first: addressText(first, family),
      last: addressText(last, family),
    };
  }
}

function isSameChain(a: ProfileChain, b: ProfileChain): boolean {
  return areSameRules(a.admin, b.admin) && areSameRules(a.rest, b.rest);
}

function areSameRules(a: readonly ChainRule[], b: readonly ChainRule[]): boolean {
  return a.length === b.length && a.every((rule, at) => isSameRule(rule, b[at] as ChainRule));
}

function noChange(family: IpFamily): Mutable<PolicyChange> {
  return {
    family,
    prepare: [],
    remove: [],
    add: [],
    chains: [],
    discard: [],
    discardChains: [],
  };
}

function isChange({ family: _, ...parts }: PolicyChange): boolean {
  return Object.values(parts).some((part) => part.length > 0);
}
