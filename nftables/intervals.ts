/**
 * Elements that are ranges in several fields at once. The kernel refuses one that begins or ends in
 * another, takes one that encloses another, and deletes the first it finds around a key. So what
 * overlaps with something new has to go before that comes.
 */
import { getOrCreate } from '../api/collections.ts';
import type { IpFamily } from '../api/objects.ts';
import type { NftElement } from '../netlink/nftables/types.ts';
import type { MapElement } from './element.ts';
import { MAPS, type MapName, widthOf } from './maps.ts';

export function isInterval(map: MapName): boolean {
  return MAPS[map].isInterval === true;
}

/** Those of `old` that cannot be in the kernel beside some of `fresh`. */
export function overlapping(
  old: Iterable<MapElement>,
  fresh: Iterable<MapElement>,
  family: IpFamily,
): MapElement[] {
  const addressLength = widthOf('address', family);
  // All begin with a VIP, which is one address.
  const vipOf = ({ map, key }: MapElement) => `${map} ${key.toString('latin1', 0, addressLength)}`;
  const byVip = new Map<string, MapElement[]>();
  for (const element of fresh) {
    if (isInterval(element.map)) getOrCreate(byVip, vipOf(element), () => []).push(element);
  }
  if (byVip.size === 0) return [];
  return [...old].filter(
    (element) =>
      isInterval(element.map) &&
      byVip.get(vipOf(element))?.some((other) => overlap(element, other, family)),
  );
}

/** Whether there is a key in both of two elements of one map. */
function overlap(a: MapElement, b: MapElement, family: IpFamily): boolean {
  let start = 0;
  return MAPS[a.map].key.every((field) => {
    const end = start + widthOf(field, family);
    const [one, other] = [bounds(a, start, end), bounds(b, start, end)];
    start = end;
    return one.first.compare(other.last) <= 0 && other.first.compare(one.last) <= 0;
  });
}

function bounds({ key, keyEnd = key }: NftElement, start: number, end: number) {
  return { first: key.subarray(start, end), last: keyEnd.subarray(start, end) };
}
