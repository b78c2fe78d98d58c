/**
 * Intervals of sets without concatenation (nft_set_rbtree), where the kernel keeps the start and the end of an interval
 * as two elements. The end is the first key behind the interval.
 */
import type { NftElement } from './types.ts';

/** An element as the kernel has it. */
export interface NftRawElement extends NftElement {
  /** NFT_SET_ELEM_INTERVAL_END */
  readonly isEnd?: true;
}

/** The bytes as one number, plus one; 0 after the highest. */
export function keyAfter(key: Buffer): Buffer {
  return plus(key, 1);
}

/** The bytes as one number, minus one; the highest before 0. */
function keyBefore(key: Buffer): Buffer {
  return plus(key, -1);
}

function plus(key: Buffer, step: 1 | -1): Buffer {
  const sum = Buffer.from(key);
  const carry = step === 1 ? 0 : 0xff;
  for (let at = sum.length - 1; at >= 0; at -= 1) {
    const byte = ((sum[at] ?? 0) + step) & 0xff;
    sum[at] = byte;
    if (byte !== carry) break;
  }
  return sum;
}

/**
 * Joins starts and ends to intervals in the order in which the kernel dumps them: the highest key first. Where one
 * interval ends and the next one starts, the start comes first. What has no other half keeps its `bound`.
 */
export class IntervalJoiner {
  readonly #visit: (interval: NftElement) => void;
  #last: NftRawElement | undefined;

  constructor(visit: (interval: NftElement) => void) {
    this.#visit = visit;
  }

  /** @returns false if the element is not in order: the intervals are then wrong. */
  add(element: NftRawElement): boolean {
    const last = this.#last;
    if (last !== undefined && dumpOrder(last, element) >= 0) return false;
    const { isEnd, ...start } = element;
    if (isEnd === true) this.end();
    else if (last?.isEnd === true) this.#visit({ ...start, keyEnd: keyBefore(last.key) });
    else this.#visit({ ...start, bound: 'start' });
    this.#last = element;
    return true;
  }

  /** Call it after the last element. */
  end(): void {
    if (this.#last?.isEnd === true) this.#visit({ key: keyBefore(this.#last.key), bound: 'end' });
  }
}

function dumpOrder(a: NftRawElement, b: NftRawElement): number {
  return b.key.compare(a.key) || Number(a.isEnd === true) - Number(b.isEnd === true);
}

/** Joins starts and ends in any order. Each of them must be there once. */
export function intervalsOf(raw: Iterable<NftRawElement>): NftElement[] {
  const intervals: NftElement[] = [];
  const joiner = new IntervalJoiner((interval) => intervals.push(interval));
  for (const element of [...raw].sort(dumpOrder)) joiner.add(element);
  joiner.end();
  return intervals.reverse();
}
