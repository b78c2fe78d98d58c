/** Addresses and CIDRs in fields of objects. */
import {
  canonicalAddress,
  canonicalCidr,
  familyOf,
  type SpecialRange,
  specialRange,
} from './addresses.ts';
import { type Field, fail, shown, text } from './read-field.ts';

export const ALL_SPECIAL: readonly SpecialRange[] = [
  'unspecified',
  'loopback',
  'link-local',
  'multicast',
  'broadcast',
];

/** @returns the canonical address, which is in none of the refused ranges. */
export function address(field: Field, refused: readonly SpecialRange[]): string {
  const value = text(field);
  const canonical = canonicalAddress(value);
  if (canonical === undefined) fail(field, `must be an IP address, not ${shown(value)}`);
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
export function cidr(field: Field): string {
  return cidrOf(field, text(field));
}

/** The same of text with white space around it or not. */
export function trimmedCidr(field: Field): string {
  return cidrOf(field, text(field).trim());
}

function cidrOf(field: Field, value: string): string {
  const canonical = canonicalCidr(value);
  return canonical ?? fail(field, `must be a CIDR such as 10.0.0.0/8, not ${shown(field.value)}`);
}

/** Refuses a second address or CIDR of one family. */
export function onePerFamily(field: Field, canonical: readonly string[]): void {
  const families = canonical.map(familyOf);
  if (new Set(families).size < families.length) fail(field, 'must hold at most one per IP family');
}
