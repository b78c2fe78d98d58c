/** Text forms of set and map elements, for comparison and display. */
import type { NftElement, NftVerdict } from '../netlink/nftables/types.ts';

/** Marks the text of an element that is only half of a range. */
export const BOUND_MARKS = { start: '>', end: '<' } as const;

/** Identifies an element in its map: its key, and the end of a range. */
export function elementKeyText({ key, keyEnd = key, bound }: NftElement): string {
  if (bound !== undefined) return `${key.toString('latin1')}${BOUND_MARKS[bound]}`;
  return key.equals(keyEnd)
    ? key.toString('latin1')
    : `${key.toString('latin1')}-${keyEnd.toString('latin1')}`;
}

/** The data of an element, for comparison; empty for an element of a set. */
export function elementDataText({ data }: NftElement): string {
  if (data === undefined) return '';
  return Buffer.isBuffer(data) ? data.toString('latin1') : verdictText(data);
}

/** Whether two elements map to the same data or verdict. */
export function hasSameData(a: NftElement, b: NftElement): boolean {
  return elementDataText(a) === elementDataText(b);
}

/** A verdict in nft syntax. */
export function verdictText(verdict: NftVerdict): string {
  return 'chain' in verdict ? `${verdict.kind} ${verdict.chain}` : verdict.kind;
}
