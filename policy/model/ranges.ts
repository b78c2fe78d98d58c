/**
 * Address ranges. Addresses are of type bigint, so that both IP families share the code. A merged
 * list of ranges is sorted, and its ranges do not overlap. Adjacent ranges stay separate, so that
 * adding a network does not change the element of an adjacent network.
 */
import ipaddr from 'ipaddr.js';
import { ADDRESS_BITS, familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';

/** A range of addresses; both ends are included. */
export interface AddressRange {
  readonly first: bigint;
  readonly last: bigint;
}

/** @param address Canonical text. */
export function addressNumber(address: string): bigint {
  const bytes = ipaddr.parse(address).toByteArray();
  return BigInt(`0x${Buffer.from(bytes).toString('hex')}`);
}

/** Canonical text of an address. */
export function addressText(value: bigint, family: IpFamily): string {
  const bytes = Buffer.from(value.toString(16).padStart(ADDRESS_BITS[family] / 4, '0'), 'hex');
  return family === 'IPv4' ? bytes.join('.') : new ipaddr.IPv6([...bytes]).toRFC5952String();
}

/** @param cidr Canonical text. */
export function cidrRange(cidr: string): AddressRange {
  const [address = '', length] = cidr.split('/');
  const first = addressNumber(address);
  const size = 1n << BigInt(ADDRESS_BITS[familyOf(cidr)] - Number(length));
  return { first, last: first + size - 1n };
}

/** Whether a merged list contains all addresses of an IP family. */
export function coversFamily(ranges: readonly AddressRange[], family: IpFamily): boolean {
  let next = 0n;
  for (const { first, last } of ranges) {
    if (first !== next) return false;
    next = last + 1n;
  }
  return next === 1n << BigInt(ADDRESS_BITS[family]);
}

/** The parts of a range that are in none of the holes. */
export function subtractRanges(
  range: AddressRange,
  holes: readonly AddressRange[],
): AddressRange[] {
  const remaining: AddressRange[] = [];
  let { first } = range;
  for (const hole of mergeRanges(holes)) {
    if (hole.last < first) continue;
    if (hole.first > range.last) break;
    if (hole.first > first) remaining.push({ first, last: hole.first - 1n });
    first = hole.last + 1n;
  }
  if (first <= range.last) remaining.push({ first, last: range.last });
  return remaining;
}

/**
 * Sorts ranges and merges overlapping ranges. The result does not depend on the order of the input.
 */
export function mergeRanges(ranges: readonly AddressRange[]): AddressRange[] {
  const joined: AddressRange[] = [];
  for (const range of ranges.toSorted((a, b) => compare(a.first, b.first))) {
    const last = joined.at(-1);
    if (last === undefined || range.first > last.last) joined.push(range);
    else if (range.last > last.last) {
      joined[joined.length - 1] = { first: last.first, last: range.last };
    }
  }
  return joined;
}

/** Ranges of the merged list `a` for which the merged list `b` has no range with equal ends. */
export function rangesNotIn(
  a: readonly AddressRange[],
  b: readonly AddressRange[],
): AddressRange[] {
  if (a === b) return [];
  const lasts = new Map(b.map(({ first, last }) => [first, last]));
  return a.filter(({ first, last }) => lasts.get(first) !== last);
}

/** Whether a range of the merged list `a` overlaps a range of the merged list `b`. */
export function rangesOverlap(a: readonly AddressRange[], b: readonly AddressRange[]): boolean {
  let at = 0;
  for (const { first, last } of a) {
    for (; at < b.length; at += 1) {
      const other = b[at] as AddressRange;
      if (other.first > last) break;
      if (other.last >= first) return true;
    }
  }
  return false;
}

/** Whether a merged list contains an address. */
export function rangesContain(ranges: readonly AddressRange[], address: bigint): boolean {
  let [low, high] = [0, ranges.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    const range = ranges[middle] as AddressRange;
    if (address > range.last) low = middle + 1;
    else if (address < range.first) high = middle;
    else return true;
  }
  return false;
}

function compare(a: bigint, b: bigint): number {
  if (a === b) return 0;
  return a < b ? -1 : 1;
}

/** Cuts all addresses of a family where one of the ranges begins or ends. */
export function* segments(
  ranges: readonly AddressRange[],
  family: IpFamily,
): Generator<AddressRange> {
  const end = 1n << BigInt(ADDRESS_BITS[family]);
  const cuts = [0n, end];
  for (const { first, last } of ranges) cuts.push(first, last + 1n);
  // Sorted lists one after another, which is what sort() is fast at.
  cuts.sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
  for (const [at, first] of cuts.entries()) {
    const next = cuts[at + 1] ?? first;
    if (next > first) yield { first, last: next - 1n };
  }
}
