/** Identity of the elements of table `portwide`. */
import type { IpFamily } from '../api/objects.ts';
import type { NftElement, NftVerdict } from '../netlink/nftables/types.ts';
import { BOUND_MARKS, elementKeyText } from '../nft/element.ts';
import { fieldWidth, type MapName, mapSpec } from './maps.ts';

/** An element with the name of its map or set. */
export interface MapElement extends NftElement {
  readonly map: MapName;
}

/** Identifies an element in the table: its map and key. */
export function elementId(element: MapElement): string {
  return `${element.map} ${elementKeyText(element)}`;
}

/** An element without data, enough to delete it. @param text from `elementKeyText`. */
export function elementFromKeyText(map: MapName, text: string, family: IpFamily): MapElement {
  const { key: fields, isInterval } = mapSpec(map);
  const length = fields.reduce((sum, field) => sum + fieldWidth(field, family), 0);
  const key = Buffer.from(text.slice(0, length), 'latin1');
  if (!isInterval) return { map, key };
  if (text.length === length + 1) {
    return { map, key, bound: text.endsWith(BOUND_MARKS.start) ? 'start' : 'end' };
  }
  const end = text.slice(length + 1);
  return { map, key, keyEnd: end === '' ? key : Buffer.from(end, 'latin1') };
}

/** An element that was read as text. @param data text from `elementDataText`. */
export function elementFromTexts(
  map: MapName,
  key: string,
  data: string,
  family: IpFamily,
): MapElement {
  const element = elementFromKeyText(map, key, family);
  const type = mapSpec(map).data;
  if (type === undefined) return element;
  return {
    ...element,
    data: type === 'verdict' ? verdictFromText(data) : Buffer.from(data, 'latin1'),
  };
}

/** Reads the text of `verdictText`. */
function verdictFromText(text: string): NftVerdict {
  const [kind, chain = ''] = text.split(' ') as [NftVerdict['kind'], string?];
  return kind === 'goto' || kind === 'jump' ? { kind, chain } : { kind };
}
