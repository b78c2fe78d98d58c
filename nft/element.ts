/** Elements of sets and maps as text, to be compared and shown. */
import type { NftElement, NftVerdict } from '../netlink/nftables/types.ts';

/** What an element is known by in its map. */
export function elementKeyText({ key, keyEnd = key }: NftElement): string {
  return key.equals(keyEnd)
    ? key.toString('latin1')
    : `${key.toString('latin1')}-${keyEnd.toString('latin1')}`;
}

/** What it maps to, as text to be compared. */
export function elementDataText({ data }: NftElement): string {
  if (data === undefined) return '';
  return Buffer.isBuffer(data) ? data.toString('latin1') : verdictText(data);
}

export function hasSameData(a: NftElement, b: NftElement): boolean {
  return elementDataText(a) === elementDataText(b);
}

/** As nft writes it. */
export function verdictText(verdict: NftVerdict): string {
  return 'chain' in verdict ? `${verdict.kind} ${verdict.chain}` : verdict.kind;
}
