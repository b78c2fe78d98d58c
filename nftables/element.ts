/** Elements of maps and sets, and the text by which they are compared. */
import type { IpFamily } from '../api/objects.ts';
import type { NftElement, NftVerdict } from '../netlink/nftables/types.ts';
import { MAPS, type MapName, widthOf } from './maps.ts';

/** An element of one of the maps. */
export interface Element extends NftElement {
  readonly map: MapName;
}

/** What an element is known by, over all maps. */
export function elementKey(element: Element): string {
  return `${element.map} ${keyText(element)}`;
}

/** What an element is known by in its map. */
export function keyText({ key, keyEnd = key }: NftElement): string {
  return key.equals(keyEnd)
    ? key.toString('latin1')
    : `${key.toString('latin1')}-${keyEnd.toString('latin1')}`;
}

/** What it maps to, as text to be compared. */
export function dataText({ data }: NftElement): string {
  if (data === undefined) return '';
  return Buffer.isBuffer(data) ? data.toString('latin1') : verdictText(data);
}

export function sameData(a: NftElement, b: NftElement): boolean {
  return dataText(a) === dataText(b);
}

/** As nft writes it. */
export function verdictText(verdict: NftVerdict): string {
  return 'chain' in verdict ? `${verdict.kind} ${verdict.chain}` : verdict.kind;
}

/** The element that `keyText` was made from, as far as deleting it needs. */
export function elementOf(map: MapName, text: string, family: IpFamily): Element {
  const { key: fields, isInterval } = MAPS[map];
  const length = fields.reduce((sum, field) => sum + widthOf(field, family), 0);
  const key = Buffer.from(text.slice(0, length), 'latin1');
  if (!isInterval) return { map, key };
  const end = text.slice(length + 1);
  return { map, key, keyEnd: end === '' ? key : Buffer.from(end, 'latin1') };
}
