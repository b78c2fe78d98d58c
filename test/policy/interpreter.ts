/**
 * What the kernel does with policy changes, as `policy/compile/change.ts` says: the sets and chains of one
 * family, and what becomes of packets. It refuses what the kernel, or the order of changes, does
 * not allow.
 */
import assert from 'node:assert/strict';
import type { IpFamily } from '../../api/objects.ts';
import { addressBytes } from '../../netlink/core/address.ts';
import type {
  CompiledRule,
  PolicyChange,
  PolicyElement,
  PolicySetChain,
} from '../../policy/compile/change.ts';
import type { Direction, ListId, RuleVerdict } from '../../policy/model/terms.ts';
import type { Flow, Verdict } from './oracle.ts';

const PROTOCOLS = { TCP: 6, UDP: 17, SCTP: 132, ICMP: 1 } as const;

type RangeElement = Extract<PolicyElement, { set: 'networks' | 'ports' }>;

/** What is neither in the table's sets of the model nor in the packet. */
export interface PacketContext {
  readonly nodeAddresses: readonly string[];
  /** Whether an address is in the set `learned`. */
  readonly learned: (list: ListId, address: string) => boolean;
}

export class Interpreter {
  readonly family: IpFamily;
  readonly elements = new Map<string, PolicyElement>();
  readonly chains = new Map<string, PolicySetChain>();
  /** The same again as a packet looks it up. */
  readonly #pods = new Map<string, number>();
  readonly #ranges = new Map<string, RangeElement[]>();
  readonly #discarded = { lists: new Set<number>(), profiles: new Set<number>() };

  constructor(family: IpFamily) {
    this.family = family;
  }

  apply(change: PolicyChange): void {
    this.prepare(change);
    this.switchOver(change);
    this.discard(change);
  }

  prepare(change: PolicyChange): void {
    assert.equal(change.family, this.family);
    const named = this.#namedLists();
    for (const element of change.prepare) {
      assert.ok(element.set === 'networks' || element.set === 'ports', element.set);
      assert.ok(!named.has(element.list), `list ${element.list} is in use`);
      this.#add(element);
    }
  }

  switchOver({ remove, add, chains }: PolicyChange): void {
    for (const element of remove) this.#remove(element);
    for (const element of add) this.#add(element);
    const [gone, come] = [remove, add].map((some) => new Set(some.map(contentKey)));
    for (const key of come ?? []) assert.ok(!gone?.has(key), `${key} goes and comes`);
    for (const element of [...remove, ...add]) {
      assert.ok(element.set !== 'ports', 'ports of a list never change');
    }
    for (const chain of chains) {
      assert.ok(!this.#discarded.profiles.has(chain.profile), 'a number is used again');
      this.chains.set(chainKey(chain), chain);
    }
    this.#checkReferences();
  }

  discard({ cleanup: discard, cleanupChains: discardChains }: PolicyChange): void {
    for (const chain of discardChains) {
      assert.ok(this.chains.delete(chainKey(chain)), `no chain ${chainKey(chain)}`);
      this.#discarded.profiles.add(chain.profile);
    }
    this.#checkReferences();
    const named = this.#namedLists();
    for (const element of discard) {
      assert.ok('list' in element && !named.has(element.list), 'discards what is in use');
      this.#remove(element);
      this.#discarded.lists.add(element.list);
    }
    for (const element of this.elements.values()) {
      if ('list' in element) assert.ok(named.has(element.list), 'something is left over');
    }
  }

  judge(flow: Flow, surroundings: PacketContext): Verdict {
    const { from, to } = flow;
    // Packets of the node itself are looked at nowhere.
    if (surroundings.nodeAddresses.includes(from)) return 'allow';
    if (from === to && this.elements.has(elementKey({ set: 'own', address: from }))) return 'allow';
    for (const [direction, subject] of [
      ['egress', from],
      ['ingress', to],
    ] as const) {
      const profile = this.#pods.get(`${direction} ${subject}`);
      if (profile === undefined) continue;
      const chain = this.chains.get(chainKey({ direction, profile }));
      assert.ok(chain !== undefined);
      if (this.#walk(chain, flow, surroundings) === 'deny') return 'deny';
    }
    return 'allow';
  }

  #walk(chain: PolicySetChain, flow: Flow, surroundings: PacketContext): Verdict {
    const matches = (rule: CompiledRule) =>
      this.#matches(rule, chain.direction, flow, surroundings);
    const outcome: RuleVerdict = chain.admin.find(matches)?.outcome ?? 'pass';
    if (outcome === 'allow') return 'allow';
    if (outcome !== 'pass') return 'deny';
    const rest = chain.lowerTiers.find(matches)?.outcome ?? 'allow';
    assert.notEqual(rest, 'pass', 'there is nothing to pass on to');
    return rest === 'allow' ? 'allow' : 'deny';
  }

  #matches(
    { peers, ports }: CompiledRule,
    direction: Direction,
    { from, to, port, protocol: name }: Flow,
    { learned }: PacketContext,
  ): boolean {
    const address = direction === 'egress' ? to : from;
    const isPeer = peers?.sets.some((set) => {
      const { number: list } = peers;
      if (set === 'learned') return learned(list, address);
      if (set === 'peers') return this.elements.has(elementKey({ set, list, address }));
      const value = addressNumber(address);
      return (this.#ranges.get(`networks ${list}`) ?? []).some((range) => {
        const [first, last] = bounds(range);
        return first <= value && value <= last;
      });
    });
    const protocol = PROTOCOLS[name];
    const isPort = ports?.sets.some((set) => {
      const { number: list } = ports;
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
    assert.ok(!this.elements.has(key), `${key} is there already`);
    if ('list' in element) {
      assert.ok(!this.#discarded.lists.has(element.list), `list ${element.list} is used again`);
    }
    this.elements.set(key, element);
    if ('profile' in element) this.#pods.set(podKey(element), element.profile);
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
    assert.deepEqual(this.elements.get(key), element, `${key} is not there`);
    this.elements.delete(key);
    if ('profile' in element) this.#pods.delete(podKey(element));
    if (!('first' in element)) return;
    const ranges = this.#ranges.get(rangesKey(element)) ?? [];
    this.#ranges.set(
      rangesKey(element),
      ranges.filter((range) => elementKey(range) !== key),
    );
  }

  #namedLists(): Set<ListId> {
    const named = new Set<ListId>();
    for (const { admin, lowerTiers: rest } of this.chains.values()) {
      for (const { peers, ports } of [...admin, ...rest]) {
        if (peers !== undefined) named.add(peers.number);
        if (ports !== undefined) named.add(ports.number);
      }
    }
    return named;
  }

  #checkReferences(): void {
    for (const element of this.elements.values()) {
      if (!('profile' in element)) continue;
      const direction = element.set === 'egress-pods' ? 'egress' : 'ingress';
      const key = chainKey({ direction, profile: element.profile });
      assert.ok(this.chains.has(key), `${elementKey(element)}: no chain ${key}`);
    }
  }
}

/** By what an element is found in its set. */
export function elementKey(element: PolicyElement): string {
  if ('profile' in element) return `${element.set} ${element.address}`;
  return JSON.stringify(Object.entries(element).sort(([a], [b]) => (a < b ? -1 : 1)));
}

function contentKey(element: PolicyElement): string {
  return JSON.stringify([elementKey(element), element]);
}

function podKey(element: Extract<PolicyElement, { profile: number }>): string {
  return `${element.set.replace('-pods', '')} ${element.address}`;
}

function chainKey({ direction, profile }: Pick<PolicySetChain, 'direction' | 'profile'>): string {
  return `${direction} ${profile}`;
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
