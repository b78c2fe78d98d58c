/** Reads addresses and CIDRs from object fields. */
import {
  canonicalAddress,
  canonicalCidr,
  familyOf,
  type SpecialRange,
  sloppyText,
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

/**
 * Reads an IP address.
 * @param refused special ranges to reject.
 * @returns the canonical address.
 * @throws InvalidObject
 */
export function readAddress(field: ObjectField, refused: readonly SpecialRange[]): string {
  return addressOf(field, readString(field), refused);
}

/** Reads an IP address like `readAddress`, but as kube-proxy does, see `sloppyText`. */
export function readSloppyAddress(field: ObjectField, refused: readonly SpecialRange[]): string {
  return addressOf(field, sloppyText(readString(field)), refused);
}

function addressOf(field: ObjectField, value: string, refused: readonly SpecialRange[]): string {
  const canonical = canonicalAddress(value);
  if (canonical === undefined)
    fail(field, `must be an IP address, not ${describeValue(field.value)}`);
  const range = specialRange(canonical);
  if (range !== undefined && refused.includes(range)) {
    fail(field, `must not be the ${range} address ${canonical}`);
  }
  return canonical;
}

/**
 * Reads a CIDR and clears its host bits. Rejects IPv4-mapped IPv6, and leading zeros in an IPv4
 * address, as strict API servers (KEP-4858) and CEL's isCIDR do: other parsers read such text as
 * a different address.
 * @throws InvalidObject
 */
export function readCidr(field: ObjectField): string {
  return cidrOf(field, readString(field));
}

/** Reads a CIDR like `readCidr`, but ignores white space around the CIDR. */
export function readTrimmedCidr(field: ObjectField): string {
  return cidrOf(field, readString(field).trim());
}

/** Reads a CIDR like `readTrimmedCidr`, but as kube-proxy does, see `sloppyText`. */
export function readSloppyCidr(field: ObjectField): string {
  return cidrOf(field, sloppyText(readString(field).trim()));
}

function cidrOf(field: ObjectField, value: string): string {
  const canonical = canonicalCidr(value);
  return (
    canonical ?? fail(field, `must be a CIDR such as 10.0.0.0/8, not ${describeValue(field.value)}`)
  );
}

/** Rejects a second address or CIDR of the same IP family. */
export function requireOnePerFamily(field: ObjectField, canonical: readonly string[]): void {
  const families = canonical.map(familyOf);
  if (new Set(families).size < families.length)
    fail(field, 'must have at most one entry per IP family');
}
