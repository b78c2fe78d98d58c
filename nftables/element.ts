/** Elements of the maps of table `portwide`. */
import type { IpFamily } from '../api/objects.ts';
import type { NftElement } from '../netlink/nftables/types.ts';
import { keyText } from '../nft/element.ts';
import { MAPS, type MapName, widthOf } from './maps.ts';

/** An element of one of the maps. */
export interface Element extends NftElement {
  readonly map: MapName;
}

/** What an element is known by, over all maps. */
export function elementKey(element: Element): string {
  return `${element.map} ${keyText(element)}`;
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
