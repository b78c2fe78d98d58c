/**
 * TTLs of the elements that a set with timeouts was given. Resolvers answer from their caches: most of what is
 * learned is in the set already, for as long as it would be now.
 */
import type { NftOperation } from '../../netlink/nftables/tables.ts';
import type { KernelElement } from '../compile/element.ts';
import type { NftSetName } from '../compile/policy-table.ts';

/** Milliseconds that an element may end too early, when to write it again would gain no more. */
const SLACK = 1000;
/** Of how long it lives, where that is short. */
const SLACK_SHARE = 8;
const FIRST_PRUNING = 1024;
/** Milliseconds, for an element that is deleted in the transaction that adds it. */
const PASSING = 60_000;

export class SetTtls {
  readonly #set: NftSetName;
  /** When elements end, by key. */
  #expirations = new Map<string, number>();
  #pruneAt = FIRST_PRUNING;

  constructor(set: NftSetName) {
    this.#set = set;
  }

  /** As far as is known: those that have ended since count until they are noticed. */
  get size(): number {
    return this.#expirations.size;
  }

  /** The set is empty. */
  clear(): void {
    this.#expirations = new Map();
    this.#pruneAt = FIRST_PRUNING;
  }

  /** Those of these that are not there, or would be gone before their time; of each key the longest. */
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
   * What writes elements that are wanting. Linux gives an element that is there a new timeout since 6.12
   * only, and before lets it keep its own. So it is deleted first; and added before that, for to
   * delete one that has just ended would be an error.
   */
  refresh(elements: readonly KernelElement[]): NftOperation[] {
    const set = this.#set;
    const there = elements.filter((element) => this.#expirations.has(keyText(element)));
    return [
      { action: 'add', set, elements },
      { action: 'delete', set, elements: there },
      { action: 'add', set, elements: there },
    ];
  }

  /**
   * What removes elements, whether they are there or not: to delete one that has just ended would be an
   * error, to add one that is there is none.
   */
  remove(elements: readonly KernelElement[]): NftOperation[] {
    const set = this.#set;
    const unique = new Map(elements.map((element) => [keyText(element), element]));
    const passing = [...unique.values()].map((each) => ({ ...each, timeoutMs: PASSING }));
    return [
      { action: 'add', set, elements: passing },
      { action: 'delete', set, elements: passing },
    ];
  }

  /** They were removed. */
  recordRemoved(elements: readonly KernelElement[]): void {
    for (const element of elements) this.#expirations.delete(keyText(element));
  }

  /** They were written. */
  recordWritten(elements: Iterable<KernelElement>, now: number): void {
    for (const element of elements) {
      this.#expirations.set(keyText(element), now + (element.timeoutMs ?? 0));
    }
    if (this.#expirations.size < this.#pruneAt) return;
    for (const [key, end] of this.#expirations) {
      if (end <= now) this.#expirations.delete(key);
    }
    this.#pruneAt = Math.max(2 * this.#expirations.size, FIRST_PRUNING);
  }
}

function keyText({ key }: KernelElement): string {
  return key.toString('latin1');
}
