/** The FQDN cache: what names were resolved to, and which lists of peers get it. No I/O; the clock is handed in. */
import { getOrCreate } from '../../api/collections.ts';
import type { FqdnContent, FqdnElement, FqdnEntry } from '../compile/change.ts';
import { NamePatterns, normalizeName } from '../model/domain-names.ts';
import type { ListId } from '../model/terms.ts';
import type { ResolvedAddress } from './dns-message.ts';

export type FqdnCacheOptions = Readonly<typeof FQDN_CACHE_DEFAULTS>;

/** As settings have them by default (config/policy-settings.ts). */
export const FQDN_CACHE_DEFAULTS = {
  /**
   * Milliseconds that an address lives at least. A resolver's cache hands out what is left of a TTL, be it
   * nothing, and whoever asked has yet to connect, perhaps to one address after the other. This is the lifetime that
   * kube-network-policies gives to a TTL of 0, and for which Java remembers an address.
   */
  floor: 30_000,
  /**
   * Milliseconds that an address lives at most, whatever its TTL; it goes before the floor. A pod may use an address
   * for its TTL (NPEP-133), so to take it away earlier would cut off the pods that behave; but one with a TTL of weeks
   * must not stay for so long. An hour is what CoreDNS caches at most.
   */
  cap: 3_600_000,
  /** Addresses of one name. */
  perName: 1000,
  /** Addresses of all names. */
  total: 100_000,
};

/** TTLs are cut to whole seconds, and the backend lets elements go that much too early. */
const ROUNDING = 1000;
/** Of the limit, how much is made free at once when it is reached. */
const ROOM = 1 / 8;

/** What an answer leads to in the kernel. */
export interface CacheChange {
  readonly add: FqdnContent;
  /** To make room. Has no timeouts. */
  readonly remove: FqdnContent;
}

/** Until when a name has its addresses. */
type Addresses = Map<string, number>;

export class FqdnCache {
  readonly #options: FqdnCacheOptions;
  #patterns = new NamePatterns<PatternLists>();
  readonly #addressesByName = new Map<string, Addresses>();
  /** Names by address. */
  readonly #namesByAddress = new Map<string, Set<string>>();
  #addressCount = 0;
  #evictions = 0;

  constructor(options: FqdnCacheOptions = FQDN_CACHE_DEFAULTS) {
    this.#options = options;
  }

  /** What has ended counts until `expire`. */
  stats(): { readonly names: number; readonly addresses: number; readonly evictions: number } {
    return {
      names: this.#addressesByName.size,
      addresses: this.#addressCount,
      evictions: this.#evictions,
    };
  }

  /**
   * These patterns count from now on, with the lists that they belong to. What was learned for others
   * stays known until it ends.
   * @returns what lists get that did not have a pattern before.
   */
  setPatterns(names: ReadonlyMap<string, ReadonlySet<ListId>>, now: number): FqdnElement[] {
    const patterns = new NamePatterns<PatternLists>();
    const fresh = new NamePatterns<PatternLists>();
    for (const [pattern, lists] of names) {
      patterns.set(pattern, { pattern, lists: new Set(lists) });
      const before = this.#patterns.get(pattern)?.lists;
      const added = [...lists].filter((list) => before?.has(list) !== true);
      if (added.length > 0) fresh.set(pattern, { pattern, lists: new Set(added) });
    }
    this.#patterns = patterns;
    return fresh.size === 0 ? [] : this.#elements(fresh, now);
  }

  /** The name got an answer. Nothing follows from one that no pattern matches. */
  addAnswer(text: string, resolved: readonly ResolvedAddress[], now: number): CacheChange {
    const name = normalizeName(text);
    const lists = listsOf(this.#patterns, name);
    if (lists.size === 0 || resolved.length === 0)
      return { add: EMPTY_CONTENT, remove: EMPTY_CONTENT };
    const addresses = getOrCreate(this.#addressesByName, name, () => new Map());
    const answers = new Map<string, FqdnEntry>();
    for (const { address, ttl } of resolved) {
      if (answers.size === this.#options.perName) break;
      const timeoutMs = this.#lifetime(ttl);
      this.#add(name, addresses, address, now + timeoutMs);
      const longest = Math.max(timeoutMs, answers.get(address)?.timeoutMs ?? 0);
      answers.set(address, { name, address, timeoutMs: longest });
    }
    const evicted = [
      ...this.#evictFromName(name, addresses, answers, now),
      ...this.#evictNames(name, now),
    ];
    this.#evictions += evicted.length;
    return {
      add: { elements: elementsOf(answers.values(), lists), answers: [...answers.values()] },
      remove: { elements: this.#unused(evicted), answers: evicted },
    };
  }

  /** What an earlier agent learned. */
  restore(answers: readonly FqdnEntry[], now: number): void {
    for (const { name, address, timeoutMs } of answers) {
      const addresses = getOrCreate(this.#addressesByName, name, () => new Map());
      this.#add(name, addresses, address, now + timeoutMs);
    }
  }

  /** Everything that is known, with the time that it has left. */
  snapshot(now: number): FqdnContent {
    const answers: FqdnEntry[] = [];
    for (const [name, addresses] of this.#addressesByName) {
      for (const [address, until] of addresses) {
        if (until > now) answers.push({ name, address, timeoutMs: until - now });
      }
    }
    return { elements: this.#elements(this.#patterns, now), answers };
  }

  /** Forgets what has ended; the kernel has by itself. */
  expire(now: number): void {
    for (const [name, addresses] of this.#addressesByName) this.#expireName(name, addresses, now);
  }

  #lifetime(ttl: number): number {
    const { floor, cap } = this.#options;
    return Math.min(Math.max(ttl * 1000, floor), cap) + ROUNDING;
  }

  #elements(patterns: NamePatterns<PatternLists>, now: number): FqdnElement[] {
    const elements: FqdnElement[] = [];
    for (const [name, addresses] of this.#addressesByName) {
      const lists = listsOf(patterns, name);
      if (lists.size === 0) continue;
      for (const [address, until] of addresses) {
        if (until <= now) continue;
        elements.push(...elementsOf([{ address, timeoutMs: until - now }], lists));
      }
    }
    return elements;
  }

  #add(name: string, addresses: Addresses, address: string, until: number): void {
    const known = addresses.get(address);
    addresses.set(address, Math.max(until, known ?? 0));
    if (known !== undefined) return;
    this.#addressCount += 1;
    getOrCreate(this.#namesByAddress, address, () => new Set()).add(name);
  }

  #drop(name: string, addresses: Addresses, address: string): void {
    if (!addresses.delete(address)) return;
    this.#addressCount -= 1;
    if (addresses.size === 0) this.#addressesByName.delete(name);
    const names = this.#namesByAddress.get(address);
    names?.delete(name);
    if (names?.size === 0) this.#namesByAddress.delete(address);
  }

  #expireName(name: string, addresses: Addresses, now: number): void {
    for (const [address, until] of addresses) {
      if (until <= now) this.#drop(name, addresses, address);
    }
  }

  /** Brings a name down to its limit; of what was not answered just now, what ends first goes first. */
  #evictFromName(
    name: string,
    addresses: Addresses,
    answered: ReadonlyMap<string, unknown>,
    now: number,
  ): FqdnEntry[] {
    if (addresses.size <= this.#options.perName) return [];
    this.#expireName(name, addresses, now);
    const excess = Math.max(addresses.size - this.#options.perName, 0);
    return [...addresses]
      .filter(([address]) => !answered.has(address))
      .sort(([, a], [, b]) => a - b)
      .slice(0, excess)
      .map(([address]) => this.#evict(name, addresses, address));
  }

  /**
   * Brings all names well below the limit. Names go that end first, but of the pattern that has most at
   * the moment: whoever has a domain of his own must not push out what others have learned.
   */
  #evictNames(current: string, now: number): FqdnEntry[] {
    const { total } = this.#options;
    if (this.#addressCount <= total) return [];
    this.expire(now);
    if (this.#addressCount <= total) return [];
    const groups = this.#groups(current);
    const evicted: FqdnEntry[] = [];
    while (this.#addressCount > total * (1 - ROOM)) {
      let biggest: Group | undefined;
      for (const group of groups) {
        if (group.size > (biggest?.size ?? 0)) biggest = group;
      }
      const victim = biggest?.names.pop();
      if (biggest === undefined || victim === undefined) break;
      biggest.size -= victim.addresses.size;
      for (const address of [...victim.addresses.keys()]) {
        evicted.push(this.#evict(victim.name, victim.addresses, address));
      }
    }
    return evicted;
  }

  /** All names but one, by the pattern that matches them most closely. */
  #groups(except: string): readonly Group[] {
    const groups = new Map<string, Group>();
    for (const [name, addresses] of this.#addressesByName) {
      if (name === except) continue;
      const [closest] = this.#patterns.match(name);
      const pattern = closest?.pattern ?? '';
      const group = getOrCreate(groups, pattern, () => ({ size: 0, names: [] }));
      group.size += addresses.size;
      group.names.push({ name, addresses, end: Math.max(...addresses.values()) });
    }
    for (const { names } of groups.values()) names.sort((a, b) => b.end - a.end);
    return [...groups.values()];
  }

  #evict(name: string, addresses: Addresses, address: string): FqdnEntry {
    this.#drop(name, addresses, address);
    return { name, address, timeoutMs: 0 };
  }

  /** Of what was evicted, the elements that no other name wants. */
  #unused(evicted: readonly FqdnEntry[]): FqdnElement[] {
    return evicted.flatMap((answer) => {
      const lists = new Set(listsOf(this.#patterns, answer.name));
      for (const name of this.#namesByAddress.get(answer.address) ?? []) {
        for (const list of listsOf(this.#patterns, name)) lists.delete(list);
      }
      return elementsOf([answer], lists);
    });
  }
}

interface PatternLists {
  readonly pattern: string;
  readonly lists: ReadonlySet<ListId>;
}

interface Group {
  /** Addresses. */
  size: number;
  /** The first to end comes last. */
  readonly names: { readonly name: string; readonly addresses: Addresses; readonly end: number }[];
}

const EMPTY_CONTENT: FqdnContent = { elements: [], answers: [] };

function listsOf(patterns: NamePatterns<PatternLists>, name: string): ReadonlySet<ListId> {
  const all = new Set<ListId>();
  for (const { lists } of patterns.match(name)) {
    for (const list of lists) all.add(list);
  }
  return all;
}

function elementsOf(
  answers: Iterable<{ readonly address: string; readonly timeoutMs: number }>,
  lists: ReadonlySet<ListId>,
): FqdnElement[] {
  const elements: FqdnElement[] = [];
  for (const { address, timeoutMs } of answers) {
    for (const list of lists) elements.push({ set: 'learned', list, address, timeoutMs });
  }
  return elements;
}
