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

/** Joins starts and ends to intervals. What has no other half keeps its `bound`. */
export function* intervalsOf(raw: Iterable<NftRawElement>): Iterable<NftElement> {
  // Where one interval ends and the next one starts, the end comes first.
  const sorted = [...raw].sort(
    (a, b) => a.key.compare(b.key) || Number(b.isEnd === true) - Number(a.isEnd === true),
  );
  let start: NftElement | undefined;
  for (const { isEnd, ...element } of sorted) {
    if (isEnd !== true) {
      if (start !== undefined) yield { ...start, bound: 'start' };
      start = element;
      continue;
    }
    const last = keyBefore(element.key);
    yield start === undefined ? { key: last, bound: 'end' } : { ...start, keyEnd: last };
    start = undefined;
  }
  if (start !== undefined) yield { ...start, bound: 'start' };
}
