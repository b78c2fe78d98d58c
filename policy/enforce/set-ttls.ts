/**
 * Tracks when the elements of an nft set with timeouts expire. Resolvers answer from their caches,
 * so most observed addresses are in the set already, with a timeout that is long enough.
 */
import type { NftOperation } from '../../netlink/nftables/tables.ts';
import type { KernelElement } from '../compile/element.ts';
import type { NftSetName } from '../compile/policy-table.ts';

/** Milliseconds that an element may expire early without being refreshed. */
const SLACK = 1000;
/** Divisor for short timeouts: the slack is at most the timeout divided by this number. */
const SLACK_SHARE = 8;
/** Minimum number of tracked elements before expired elements are pruned. */
const MIN_PRUNE_SIZE = 1024;
/** Timeout in milliseconds of an element that the same transaction adds and deletes. */
const DELETE_TTL = 60_000;

export class SetTtls {
  readonly #set: NftSetName;
  /** Expiry time in milliseconds by element key. */
  #expirations = new Map<string, number>();
  #pruneAt = MIN_PRUNE_SIZE;

  constructor(set: NftSetName) {
    this.#set = set;
  }

  /** Number of tracked elements. Expired elements count until they are pruned. */
  get size(): number {
    return this.#expirations.size;
  }

  /** Forgets all elements. Call before the whole set is written. */
  clear(): void {
    this.#expirations = new Map();
    this.#pruneAt = MIN_PRUNE_SIZE;
  }

  /**
   * Elements that the set lacks or that would expire too early; for each key the longest timeout.
   */
  missing(elements: Iterable<KernelElement>, now: number): KernelElement[] {
    const longest = new Map<string, KernelElement>();
    for (const element of elements) {
      const key = keyText(element);
      const { timeoutMs = 0 } = element;
      const left = (this.#expirations.get(key) ?? -Infinity) - now;
      if (left + Math.min(SLACK, timeoutMs / SLACK_SHARE) >= timeoutMs) continue;
      if ((longest.get(key)?.timeoutMs ?? 0) < timeoutMs) longest.set(key, element);
    }
    return [...longest.values()];
  }

  /**
   * Operations that write missing elements. Before Linux 6.12 an add does not change the timeout of
   * an existing element, so the element is deleted and added again. Deleting an element that has
   * just expired is an error (ENOENT), so an add comes first.
   */
  refresh(elements: readonly KernelElement[]): NftOperation[] {
    const set = this.#set;
    const existing = elements.filter((element) => this.#expirations.has(keyText(element)));
    return [
      { action: 'add', set, elements },
      { action: 'delete', set, elements: existing },
      { action: 'add', set, elements: existing },
    ];
  }

  /**
   * Operations that remove elements, whether they exist or not. Deleting an expired element is an
   * error (ENOENT), but adding an existing element is not, so add first, then delete.
   */
  remove(elements: readonly KernelElement[]): NftOperation[] {
    const set = this.#set;
    const unique = new Map(elements.map((element) => [keyText(element), element]));
    const all = [...unique.values()].map((each) => ({ ...each, timeoutMs: DELETE_TTL }));
    return [
      { action: 'add', set, elements: all },
      { action: 'delete', set, elements: all },
    ];
  }

  recordRemoved(elements: readonly KernelElement[]): void {
    for (const element of elements) this.#expirations.delete(keyText(element));
  }

  recordWritten(elements: Iterable<KernelElement>, now: number): void {
    for (const element of elements) {
      this.#expirations.set(keyText(element), now + (element.timeoutMs ?? 0));
    }
    if (this.#expirations.size < this.#pruneAt) return;
    for (const [key, expiry] of this.#expirations) {
      if (expiry <= now) this.#expirations.delete(key);
    }
    this.#pruneAt = Math.max(2 * this.#expirations.size, MIN_PRUNE_SIZE);
  }
}

function keyText({ key }: KernelElement): string {
  return key.toString('latin1');
}
