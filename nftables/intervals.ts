/**
 * Overlaps in interval maps. The kernel refuses an element that begins or ends inside an existing element, but where
 * elements are ranges in several fields, it accepts an element that encloses an existing one. A deletion then removes
 * the first element that contains the key. Elements that overlap an addition must therefore be deleted before it.
 */
import { getOrCreate } from '../api/collections.ts';
import type { IpFamily } from '../api/objects.ts';
import type { NftElement } from '../netlink/nftables/types.ts';
import type { MapElement } from './element.ts';
import { fieldWidth, type MapName, mapSpec } from './maps.ts';

/** Whether elements of the map are ranges. */
export function isIntervalMap(map: MapName): boolean {
  return mapSpec(map).isInterval === true;
}

/** The elements of `old` that overlap an element of `fresh` in the same map. */
export function overlappingElements(
  old: Iterable<MapElement>,
  fresh: readonly MapElement[],
  family: IpFamily,
): MapElement[] {
  const addressLength = fieldWidth('address', family);
  // Every key of an interval map begins with a VIP, which is a single address.
  const vipOf = ({ map, key }: MapElement) => `${map} ${key.toString('latin1', 0, addressLength)}`;
  const byVip = new Map<string, MapElement[]>();
  for (const element of fresh) {
    if (isIntervalMap(element.map)) getOrCreate(byVip, vipOf(element), () => []).push(element);
  }
  if (byVip.size === 0) return [];
  const maps = new Set([...fresh].map(({ map }) => map));
  return [...old].filter(
    (element) =>
      isIntervalMap(element.map) &&
      (byVip.get(vipOf(element))?.some((other) => overlap(element, other, family)) ||
        (maps.has(element.map) && spansAddresses(element, addressLength))),
  );
}

/** Whether another program has written this element: it has no end, or ends at another address. */
function spansAddresses({ key, keyEnd = key, bound }: NftElement, addressLength: number): boolean {
  return bound !== undefined || key.compare(keyEnd, 0, addressLength, 0, addressLength) !== 0;
}

/** Whether two elements of one map have a key in common. */
function overlap(a: MapElement, b: MapElement, family: IpFamily): boolean {
  let start = 0;
  return mapSpec(a.map).key.every((field) => {
    const end = start + fieldWidth(field, family);
    const [one, other] = [bounds(a, start, end), bounds(b, start, end)];
    start = end;
    return one.first.compare(other.last) <= 0 && other.first.compare(one.last) <= 0;
  });
}

function bounds({ key, keyEnd = key }: NftElement, start: number, end: number) {
  return { first: key.subarray(start, end), last: keyEnd.subarray(start, end) };
}
