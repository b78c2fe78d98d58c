/**
 * Overlaps in interval maps. The kernel refuses an element that begins or ends inside an existing element, but where
 * elements are ranges in several fields, it accepts an element that encloses an existing one. A deletion then removes
 * the first element that contains the key. Elements that overlap an addition must therefore be deleted before it.
 */
import { getOrCreate } from '../api/collections.ts';
import type { IpFamily } from '../api/objects.ts';
import { finish, type Steps } from '../api/steps.ts';
import type { NftElement } from '../netlink/nftables/types.ts';
import type { MapElement } from './element.ts';
import { fieldWidth, isOrderedMap, type MapName, mapSpec } from './maps.ts';

/** Whether elements of the map are ranges. */
export function isIntervalMap(map: MapName): boolean {
  return mapSpec(map).isInterval === true;
}

/** The elements of `old` that overlap an element of `fresh` in the same map. */
export function overlappingElements(
  old: Iterable<MapElement>,
  fresh: Iterable<MapElement>,
  family: IpFamily,
): MapElement[] {
  return finish(overlapSteps(old, fresh, family));
}

/** As `overlappingElements`, in steps. */
export function* overlapSteps(
  old: Iterable<MapElement>,
  fresh: Iterable<MapElement>,
  family: IpFamily,
): Steps<MapElement[]> {
  const candidates = [...old].filter(({ map }) => isIntervalMap(map));
  if (candidates.length === 0) return [];
  const addressLength = fieldWidth('address', family);
  // The key of every interval map begins with an address that is no range.
  const groupOf = ({ map, key }: MapElement) =>
    `${map} ${key.toString('latin1', 0, addressLength)}`;
  const groups = new Map<string, MapElement[]>();
  const maps = new Set<MapName>();
  for (const element of fresh) {
    yield undefined;
    if (!isIntervalMap(element.map)) continue;
    maps.add(element.map);
    getOrCreate(groups, groupOf(element), () => []).push(element);
  }
  const sorted = new Map<string, SortedElements>();
  for (const [group, elements] of groups) {
    yield undefined;
    sorted.set(group, new SortedElements(elements));
  }
  const overlapping: MapElement[] = [];
  for (const element of candidates) {
    yield undefined;
    const isInTheWay = spansAddresses(element, addressLength)
      ? maps.has(element.map)
      : sorted.get(groupOf(element))?.hasOverlap(element, family) === true;
    if (isInTheWay) overlapping.push(element);
  }
  return overlapping;
}

/** Finds overlaps without a comparison of all pairs: a Service may have 65,535 slices of owned ports. */
class SortedElements {
  readonly #elements: readonly MapElement[];
  /** The greatest end of each element and those before it. */
  readonly #ends: Buffer[] = [];

  constructor(elements: readonly MapElement[]) {
    this.#elements = elements.toSorted((a, b) => a.key.compare(b.key));
    let last: Buffer | undefined;
    for (const { key, keyEnd = key } of this.#elements) {
      last = last === undefined || keyEnd.compare(last) > 0 ? keyEnd : last;
      this.#ends.push(last);
    }
  }

  hasOverlap(element: MapElement, family: IpFamily): boolean {
    const { key, keyEnd = key } = element;
    // Ranges of fields that overlap also overlap as ranges of whole keys.
    for (let at = this.#firstAfter(keyEnd) - 1; at >= 0; at--) {
      const [other, end] = [this.#elements[at], this.#ends[at]];
      if (other === undefined || end === undefined || end.compare(key) < 0) return false;
      if (overlap(element, other, family)) return true;
    }
    return false;
  }

  /** Index of the first element whose key is greater. */
  #firstAfter(key: Buffer): number {
    let [low, high] = [0, this.#elements.length];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((this.#elements[middle]?.key.compare(key) ?? 1) > 0) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

/** Whether another program has written this element: it has no end, or ends at another address. */
function spansAddresses({ key, keyEnd = key, bound }: NftElement, addressLength: number): boolean {
  return bound !== undefined || key.compare(keyEnd, 0, addressLength, 0, addressLength) !== 0;
}

/** Whether two elements of one map have a key in common. */
function overlap(a: MapElement, b: MapElement, family: IpFamily): boolean {
  if (isOrderedMap(a.map)) {
    const [{ keyEnd: endOfA = a.key }, { keyEnd: endOfB = b.key }] = [a, b];
    return a.key.compare(endOfB) <= 0 && b.key.compare(endOfA) <= 0;
  }
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
