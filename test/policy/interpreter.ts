/**
 * A model of the kernel for one IP family: applies policy changes (`policy/compile/change.ts`) to
 * sets and chains, and evaluates packets. Fails on changes that the kernel would refuse, or in the
 * wrong phase.
 */
import assert from 'node:assert/strict';
import type { IpFamily } from '../../api/objects.ts';
import { addressBytes } from '../../netlink/core/address.ts';
import {
  type CompiledRule,
  idIn,
  type PolicyChange,
  type PolicyElement,
  type PolicySetChain,
} from '../../policy/compile/change.ts';
import type { Direction, ListId, RuleVerdict } from '../../policy/model/terms.ts';
import type { Flow, Verdict } from './oracle.ts';

const PROTOCOLS = { TCP: 6, UDP: 17, SCTP: 132, ICMP: 1 } as const;

type RangeElement = Extract<PolicyElement, { set: 'networks' | 'ports' }>;

/** State outside the model that the evaluation of a packet needs. */
export interface PacketContext {
  readonly nodeAddresses: readonly string[];
  /** Whether an address is in the set `fqdn-peers`. */
  readonly isFqdnPeer: (list: ListId, address: string) => boolean;
}

export class Interpreter {
  readonly family: IpFamily;
  readonly elements = new Map<string, PolicyElement>();
  readonly chains = new Map<string, PolicySetChain>();
  /** Elements by lookup key. */
  readonly #pods = new Map<string, number>();
  readonly #ranges = new Map<string, RangeElement[]>();
  readonly #removed = { lists: new Set<string>(), policySets: new Set<number>() };

  constructor(family: IpFamily) {
    this.family = family;
  }

  apply(change: PolicyChange): void {
    this.prepare(change);
    this.commit(change);
    this.cleanup(change);
  }

  prepare(change: PolicyChange): void {
    assert.equal(change.family, this.family);
    const named = this.#namedLists();
    for (const element of change.prepare) {
      assert.ok(element.set === 'networks' || element.set === 'ports', element.set);
      assert.ok(!named.has(listKey(element)), `list ${element.list} is in use`);
      this.#add(element);
    }
  }

  commit({ remove, add, chains }: PolicyChange): void {
    for (const element of remove) this.#remove(element);
    for (const element of add) this.#add(element);
    const [removed, added] = [remove, add].map((some) => new Set(some.map(contentKey)));
    for (const key of added ?? []) assert.ok(!removed?.has(key), `${key} is removed and added`);
    for (const element of [...remove, ...add]) {
      assert.ok(element.set !== 'ports', 'ports of a list never change');
    }
    checkReplaced(remove, add);
    for (const chain of chains) {
      assert.ok(!this.#removed.policySets.has(chain.policySetId), 'a policy set id is reused');
      this.chains.set(chainKey(chain), chain);
    }
    this.#checkReferences();
  }

  cleanup({ cleanup, cleanupChains }: PolicyChange): void {
    for (const chain of cleanupChains) {
      assert.ok(this.chains.delete(chainKey(chain)), `no chain ${chainKey(chain)}`);
      this.#removed.policySets.add(chain.policySetId);
    }
    this.#checkReferences();
    const named = this.#namedLists();
    for (const element of cleanup) {
      assert.ok('list' in element && !named.has(listKey(element)), 'removes a list in use');
      this.#remove(element);
      this.#removed.lists.add(listKey(element));
    }
    for (const element of this.elements.values()) {
      if ('list' in element) assert.ok(named.has(listKey(element)), 'a list without rule remains');
    }
  }

  evaluate(flow: Flow, context: PacketContext): Verdict {
    const { from, to } = flow;
    // Packets of the node itself are never evaluated.
    if (context.nodeAddresses.includes(from)) return 'allow';
    if (from === to && this.elements.has(elementKey({ set: 'hairpin-pods', address: from })))
      return 'allow';
    for (const [direction, subject] of [
      ['egress', from],
      ['ingress', to],
    ] as const) {
      const policySetId = this.#pods.get(`${direction} ${subject}`);
      if (policySetId === undefined) continue;
      const chain = this.chains.get(chainKey({ direction, policySetId }));
      assert.ok(chain !== undefined);
      if (this.#walk(chain, flow, context) === 'deny') return 'deny';
    }
    return 'allow';
  }

  #walk(chain: PolicySetChain, flow: Flow, context: PacketContext): Verdict {
    const matches = (rule: CompiledRule) => this.#matches(rule, chain.direction, flow, context);
    const outcome: RuleVerdict = chain.admin.find(matches)?.verdict ?? 'pass';
    if (outcome === 'allow') return 'allow';
    if (outcome !== 'pass') return 'deny';
    const rest = chain.lowerTiers.find(matches)?.verdict ?? 'allow';
    assert.notEqual(rest, 'pass', 'Pass in the last tier');
    return rest === 'allow' ? 'allow' : 'deny';
  }

  #matches(
    { peers, ports }: CompiledRule,
    direction: Direction,
    { from, to, port, protocol: name }: Flow,
    { isFqdnPeer }: PacketContext,
  ): boolean {
    const address = direction === 'egress' ? to : from;
    const isPeer = peers?.sets.some((set) => {
      const list = idIn(set, peers);
      if (set === 'fqdn-peers') return isFqdnPeer(list, address);
      if (set === 'peers') return this.elements.has(elementKey({ set, list, address }));
      const value = addressNumber(address);
      return (this.#ranges.get(`networks ${list}`) ?? []).some((range) => {
        const [first, last] = bounds(range);
        return first <= value && value <= last;
      });
    });
    const protocol = PROTOCOLS[name];
    const isPort = ports?.sets.some((set) => {
      const { id: list } = ports;
      if (set === 'named-ports') {
        return this.elements.has(elementKey({ set, list, address: to, protocol, port }));
      }
      return (this.#ranges.get(`ports ${list} ${protocol}`) ?? []).some((range) => {
        const [first, last] = bounds(range);
        return first <= port && port <= last;
      });
    });
    return isPeer !== false && isPort !== false;
  }

  #add(element: PolicyElement): void {
    const key = elementKey(element);
    assert.ok(!this.elements.has(key), `${key} exists already`);
    if ('list' in element) {
      assert.ok(!this.#removed.lists.has(listKey(element)), `list ${element.list} is reused`);
    }
    this.elements.set(key, element);
    if ('policySetId' in element) this.#pods.set(podKey(element), element.policySetId);
    if (!('first' in element)) return;
    const ranges = this.#ranges.get(rangesKey(element)) ?? [];
    const [first, last] = bounds(element);
    assert.ok(first <= last, key);
    for (const other of ranges) {
      const [otherFirst, otherLast] = bounds(other);
      assert.ok(last < otherFirst || otherLast < first, `${key} overlaps another`);
    }
    this.#ranges.set(rangesKey(element), [...ranges, element]);
  }

  #remove(element: PolicyElement): void {
    const key = elementKey(element);
    assert.deepEqual(this.elements.get(key), element, `${key} does not exist`);
    this.elements.delete(key);
    if ('policySetId' in element) this.#pods.delete(podKey(element));
    if (!('first' in element)) return;
    const ranges = this.#ranges.get(rangesKey(element)) ?? [];
    this.#ranges.set(
      rangesKey(element),
      ranges.filter((range) => elementKey(range) !== key),
    );
  }

  /** Lists that rules refer to, see `listKey`. */
  #namedLists(): Set<string> {
    const named = new Set<string>();
    for (const { admin, lowerTiers } of this.chains.values()) {
      for (const { peers, ports } of [...admin, ...lowerTiers]) {
        for (const set of peers?.sets ?? [])
          if (peers !== undefined) named.add(listKey({ set, list: idIn(set, peers) }));
        for (const set of ports?.sets ?? [])
          if (ports !== undefined) named.add(listKey({ set, list: ports.id }));
      }
    }
    return named;
  }

  #checkReferences(): void {
    const addressesIn = (...sets: PolicyElement['set'][]) =>
      new Set(
        [...this.elements.values()].flatMap((each) =>
          'address' in each && sets.includes(each.set) ? each.address : [],
        ),
      );
    assert.deepEqual(
      addressesIn('selected-pods'),
      addressesIn('ingress-pods', 'egress-pods'),
      'pods with a policy set are selected',
    );
    for (const element of this.elements.values()) {
      if (!('policySetId' in element)) continue;
      const direction = element.set === 'egress-pods' ? 'egress' : 'ingress';
      const key = chainKey({ direction, policySetId: element.policySetId });
      assert.ok(this.chains.has(key), `${elementKey(element)}: no chain ${key}`);
    }
  }
}

/** Asserts that no network is replaced by an overlapping network: see `AppliedState.#renumber`. */
function checkReplaced(remove: readonly PolicyElement[], add: readonly PolicyElement[]): void {
  const ranges = (some: readonly PolicyElement[]) =>
    some.filter((element): element is RangeElement => element.set === 'networks');
  for (const gone of ranges(remove)) {
    for (const added of ranges(add)) {
      const [[first, last], [from, to]] = [bounds(gone), bounds(added)];
      const isApart = gone.list !== added.list || last < from || to < first;
      assert.ok(isApart, `${elementKey(added)} replaces a network that it overlaps`);
    }
  }
}

/** A list in one set: the networks of a list may have another id than the other members. */
function listKey({ set, list }: { readonly set: string; readonly list: ListId }): string {
  return `${set} ${list}`;
}

/** The key of an element in its set. */
export function elementKey(element: PolicyElement): string {
  if ('policySetId' in element) return `${element.set} ${element.address}`;
  return JSON.stringify(Object.entries(element).sort(([a], [b]) => (a < b ? -1 : 1)));
}

function contentKey(element: PolicyElement): string {
  return JSON.stringify([elementKey(element), element]);
}

function podKey(element: Extract<PolicyElement, { policySetId: number }>): string {
  return `${element.set.replace('-pods', '')} ${element.address}`;
}

function chainKey({
  direction,
  policySetId,
}: Pick<PolicySetChain, 'direction' | 'policySetId'>): string {
  return `${direction} ${policySetId}`;
}

function rangesKey(element: RangeElement): string {
  return element.set === 'ports'
    ? `ports ${element.list} ${element.protocol}`
    : `networks ${element.list}`;
}

function bounds({ first, last }: RangeElement): readonly [bigint, bigint] {
  return [toNumber(first), toNumber(last)];
}

function toNumber(value: string | number): bigint {
  return typeof value === 'number' ? BigInt(value) : addressNumber(value);
}

const known = new Map<string, bigint>();

function addressNumber(address: string): bigint {
  const value = known.get(address) ?? BigInt(`0x${addressBytes(address).toString('hex')}`);
  known.set(address, value);
  return value;
}
