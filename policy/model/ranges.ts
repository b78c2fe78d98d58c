/**
 * Sets of addresses as ranges. Numbers of any width, so that both families are one code path. A
 * normal list of ranges is sorted, and its ranges do not overlap. They may touch: a network beside one that
 * is in force comes without a change of that.
 */
import ipaddr from 'ipaddr.js';
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';

/** Both ends are included. */
export interface AddressRange {
  readonly first: bigint;
  readonly last: bigint;
}

const BITS: Readonly<Record<IpFamily, number>> = { IPv4: 32, IPv6: 128 };

/** @param address Canonical text. */
export function addressNumber(address: string): bigint {
  const bytes = ipaddr.parse(address).toByteArray();
  return BigInt(`0x${Buffer.from(bytes).toString('hex')}`);
}

/** Canonical text of an address. */
export function addressText(value: bigint, family: IpFamily): string {
  const bytes = Buffer.from(value.toString(16).padStart(BITS[family] / 4, '0'), 'hex');
  return family === 'IPv4' ? bytes.join('.') : new ipaddr.IPv6([...bytes]).toRFC5952String();
}

/** @param cidr Canonical text. */
export function cidrRange(cidr: string): AddressRange {
  const [address = '', length] = cidr.split('/');
  const first = addressNumber(address);
  const size = 1n << BigInt(BITS[familyOf(cidr)] - Number(length));
  return { first, last: first + size - 1n };
}

/** Whether a normal list has all addresses of a family. */
export function coversFamily(ranges: readonly AddressRange[], family: IpFamily): boolean {
  let next = 0n;
  for (const { first, last } of ranges) {
    if (first !== next) return false;
    next = last + 1n;
  }
  return next === 1n << BigInt(BITS[family]);
}

/** What is left of a range without others. */
export function subtractRanges(
  range: AddressRange,
  holes: readonly AddressRange[],
): AddressRange[] {
  const left: AddressRange[] = [];
  let { first } = range;
  for (const hole of mergeRanges(holes)) {
    if (hole.last < first) continue;
    if (hole.first > range.last) break;
    if (hole.first > first) left.push({ first, last: hole.first - 1n });
    first = hole.last + 1n;
  }
  if (first <= range.last) left.push({ first, last: range.last });
  return left;
}

/** A normal list of the same addresses, the same for the same ranges. */
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

/** Ranges of the normal list `a` that the normal list `b` has not got just so. */
export function rangesNotIn(
  a: readonly AddressRange[],
  b: readonly AddressRange[],
): AddressRange[] {
  if (a === b) return [];
  const known = new Map(b.map(({ first, last }) => [first, last]));
  return a.filter(({ first, last }) => known.get(first) !== last);
}

/** Whether an address is in a normal list. */
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
