/**
 * The FQDN cache: resolved addresses by domain name. Knows the peer lists of each domain name
 * pattern. No I/O; the caller passes the time.
 */
import { getOrCreate } from '../../api/collections.ts';
import type { FqdnContent, FqdnElement, FqdnEntry } from '../compile/change.ts';
import { NamePatterns, normalizeName } from '../model/domain-names.ts';
import type { ListId } from '../model/terms.ts';
import type { ResolvedAddress } from './dns-message.ts';

export type FqdnCacheOptions = Readonly<typeof FQDN_CACHE_DEFAULTS>;

/**
 * Defaults. The settings of `floor` and `cap` (config/policy-settings.ts) have the same defaults.
 */
export const FQDN_CACHE_DEFAULTS = {
  /**
   * TTL floor: minimum lifetime of an address in milliseconds. A resolver's cache returns the
   * remaining TTL, which may be 0, but the client still has to connect, possibly to several
   * addresses in turn. kube-network-policies uses this lifetime for a TTL of 0. Java caches
   * addresses for 30 s.
   */
  floor: 30_000,
  /**
   * TTL cap: maximum lifetime of an address in milliseconds; takes precedence over the floor. A pod
   * may use an address for its TTL (NPEP-133), so a low cap breaks correct clients. An
   * address with a TTL of weeks must not stay for weeks. One hour is the maximum that CoreDNS
   * caches.
   */
  cap: 3_600_000,
  /** Maximum number of addresses of one name. */
  perName: 1000,
  /** Maximum number of addresses of all names. */
  total: 100_000,
};

/**
 * Milliseconds added to each TTL: TTLs are truncated to whole seconds, and the backend lets
 * elements expire up to 1 s early.
 */
const ROUNDING = 1000;
/** Share of `total` that is evicted at once when the limit is reached. */
const EVICTION_SHARE = 1 / 8;

/** The kernel changes that follow from an answer. */
export interface CacheChange {
  readonly add: FqdnContent;
  /** Evicted entries; their timeouts are 0. */
  readonly remove: FqdnContent;
}

/** Expiry time in milliseconds by address, for one domain name. */
type Addresses = Map<string, number>;

export class FqdnCache {
  readonly #options: FqdnCacheOptions;
  #patterns = new NamePatterns<PatternLists>();
  readonly #addressesByName = new Map<string, Addresses>();
  /** Domain names by resolved address. */
  readonly #namesByAddress = new Map<string, Set<string>>();
  #addressCount = 0;
  #evictions = 0;

  constructor(options: FqdnCacheOptions = FQDN_CACHE_DEFAULTS) {
    this.#options = options;
  }

  /**
   * Numbers of cached names and addresses, and of evicted addresses. Expired addresses count until
   * `expire`.
   */
  stats(): { readonly names: number; readonly addresses: number; readonly evictions: number } {
    return {
      names: this.#addressesByName.size,
      addresses: this.#addressCount,
      evictions: this.#evictions,
    };
  }

  /**
   * Replaces the patterns and their peer lists. Entries that no pattern matches any longer stay
   * until they expire.
   * @returns elements with the cached addresses, for lists that are new for a pattern.
   */
  setPatterns(
    listsByPattern: ReadonlyMap<string, ReadonlySet<ListId>>,
    now: number,
  ): FqdnElement[] {
    const patterns = new NamePatterns<PatternLists>();
    const newLists = new NamePatterns<PatternLists>();
    for (const [pattern, lists] of listsByPattern) {
      patterns.set(pattern, { pattern, lists: new Set(lists) });
      const before = this.#patterns.get(pattern)?.lists;
      const added = [...lists].filter((list) => before?.has(list) !== true);
      if (added.length > 0) newLists.set(pattern, { pattern, lists: new Set(added) });
    }
    this.#patterns = patterns;
    return newLists.size === 0 ? [] : this.#elements(newLists, now);
  }

  /** Adds the addresses of an answer. Ignores names that no pattern matches. */
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
      add: { elements: elementsOf(answers.values(), lists), entries: [...answers.values()] },
      remove: { elements: this.#unused(evicted), entries: evicted },
    };
  }

  /** Adds entries that an earlier agent stored. */
  restore(entries: readonly FqdnEntry[], now: number): void {
    for (const { name, address, timeoutMs } of entries) {
      const addresses = getOrCreate(this.#addressesByName, name, () => new Map());
      this.#add(name, addresses, address, now + timeoutMs);
    }
  }

  /** All entries that have not expired, with their remaining lifetimes. */
  snapshot(now: number): FqdnContent {
    const entries: FqdnEntry[] = [];
    for (const [name, addresses] of this.#addressesByName) {
      for (const [address, until] of addresses) {
        if (until > now) entries.push({ name, address, timeoutMs: until - now });
      }
    }
    return { elements: this.#elements(this.#patterns, now), entries };
  }

  /** Whether a peer list has an address because a domain name resolved to it. */
  hasPeer(list: ListId, address: string, now: number): boolean {
    return [...(this.#namesByAddress.get(address) ?? [])].some(
      (name) =>
        (this.#addressesByName.get(name)?.get(address) ?? 0) > now &&
        listsOf(this.#patterns, name).has(list),
    );
  }

  /** Drops expired entries. The kernel removes expired elements by itself. */
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
    const previous = addresses.get(address);
    addresses.set(address, Math.max(until, previous ?? 0));
    if (previous !== undefined) return;
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

  /**
   * Evicts addresses beyond the limit of a name, the earliest expiry first, but no address of the
   * current answer.
   */
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
   * Evicts whole names until the total is well below the limit: the names that expire first, from
   * the pattern with the most addresses. So the owner of one domain cannot displace the entries of
   * other patterns.
   */
  #evictNames(current: string, now: number): FqdnEntry[] {
    const { total } = this.#options;
    if (this.#addressCount <= total) return [];
    this.expire(now);
    if (this.#addressCount <= total) return [];
    const groups = this.#groups(current);
    const evicted: FqdnEntry[] = [];
    while (this.#addressCount > total * (1 - EVICTION_SHARE)) {
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

  /** All names except `except`, grouped by the most specific pattern that matches. */
  #groups(except: string): readonly Group[] {
    const groups = new Map<string, Group>();
    for (const [name, addresses] of this.#addressesByName) {
      if (name === except) continue;
      const [closest] = this.#patterns.match(name);
      const pattern = closest?.pattern ?? '';
      const group = getOrCreate(groups, pattern, () => ({ size: 0, names: [] }));
      group.size += addresses.size;
      group.names.push({ name, addresses, expiry: Math.max(...addresses.values()) });
    }
    for (const { names } of groups.values()) names.sort((a, b) => b.expiry - a.expiry);
    return [...groups.values()];
  }

  #evict(name: string, addresses: Addresses, address: string): FqdnEntry {
    this.#drop(name, addresses, address);
    return { name, address, timeoutMs: 0 };
  }

  /** Elements of evicted entries that no other name needs. */
  #unused(evicted: readonly FqdnEntry[]): FqdnElement[] {
    return evicted.flatMap((entry) => {
      const lists = new Set(listsOf(this.#patterns, entry.name));
      for (const name of this.#namesByAddress.get(entry.address) ?? []) {
        for (const list of listsOf(this.#patterns, name)) lists.delete(list);
      }
      return elementsOf([entry], lists);
    });
  }
}

interface PatternLists {
  readonly pattern: string;
  readonly lists: ReadonlySet<ListId>;
}

interface Group {
  /** Number of addresses. */
  size: number;
  /** The name that expires first comes last. */
  readonly names: {
    readonly name: string;
    readonly addresses: Addresses;
    readonly expiry: number;
  }[];
}

const EMPTY_CONTENT: FqdnContent = { elements: [], entries: [] };

function listsOf(patterns: NamePatterns<PatternLists>, name: string): ReadonlySet<ListId> {
  const all = new Set<ListId>();
  for (const { lists } of patterns.match(name)) {
    for (const list of lists) all.add(list);
  }
  return all;
}

function elementsOf(
  entries: Iterable<{ readonly address: string; readonly timeoutMs: number }>,
  lists: ReadonlySet<ListId>,
): FqdnElement[] {
  const elements: FqdnElement[] = [];
  for (const { address, timeoutMs } of entries) {
    for (const list of lists) elements.push({ set: 'fqdn-peers', list, address, timeoutMs });
  }
  return elements;
}
