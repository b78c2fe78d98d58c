/** Addresses and CIDRs in fields of objects. */
import {
  canonicalAddress,
  canonicalCidr,
  familyOf,
  type SpecialRange,
  specialRange,
} from './addresses.ts';
import { describeValue, fail, type ObjectField, readString } from './read-field.ts';

export const ALL_SPECIAL: readonly SpecialRange[] = [
  'unspecified',
  'loopback',
  'link-local',
  'multicast',
  'broadcast',
];

/** @returns the canonical address, which is in none of the refused ranges. */
export function readAddress(field: ObjectField, refused: readonly SpecialRange[]): string {
  const value = readString(field);
  const canonical = canonicalAddress(value);
  if (canonical === undefined) fail(field, `must be an IP address, not ${describeValue(value)}`);
  const range = specialRange(canonical);
  if (range !== undefined && refused.includes(range)) {
    fail(field, `must not be the ${range} address ${canonical}`);
  }
  return canonical;
}

/**
 * A CIDR without its host bits. As API servers that are strict (KEP-4858), and as isCIDR of
 * their CEL, it takes no IPv4 in IPv6 and no leading zeros: these are other hosts to other readers.
 */
export function readCidr(field: ObjectField): string {
  return cidrOf(field, readString(field));
}

/** The same of text with white space around it or not. */
export function readTrimmedCidr(field: ObjectField): string {
  return cidrOf(field, readString(field).trim());
}

function cidrOf(field: ObjectField, value: string): string {
  const canonical = canonicalCidr(value);
  return (
    canonical ?? fail(field, `must be a CIDR such as 10.0.0.0/8, not ${describeValue(field.value)}`)
  );
}

/** Refuses a second address or CIDR of one family. */
export function requireOnePerFamily(field: ObjectField, canonical: readonly string[]): void {
  const families = canonical.map(familyOf);
  if (new Set(families).size < families.length) fail(field, 'must hold at most one per IP family');
}
