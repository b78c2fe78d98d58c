import { canonicalAddress, canonicalCidr, familyOf } from './addresses.ts';
import { type Field, fail, shown, text } from './read-field.ts';

/** Addresses that mean something other than one host on the network. */
export type SpecialRange = 'unspecified' | 'loopback' | 'link-local' | 'multicast' | 'broadcast';

/** @returns the special range that a canonical address is in; undefined for an ordinary one. */
export function specialRange(canonical: string): SpecialRange | undefined {
  if (familyOf(canonical) === 'IPv6') {
    if (canonical === '::') return 'unspecified';
    if (canonical === '::1') return 'loopback';
    if (/^fe[89ab][0-9a-f]:/.test(canonical)) return 'link-local';
    return /^ff[0-9a-f]{2}:/.test(canonical) ? 'multicast' : undefined;
  }
  if (canonical === '0.0.0.0') return 'unspecified';
  if (canonical === '255.255.255.255') return 'broadcast';
  if (canonical.startsWith('127.')) return 'loopback';
  if (canonical.startsWith('169.254.')) return 'link-local';
  const first = Number.parseInt(canonical, 10);
  return first >= 224 && first <= 239 ? 'multicast' : undefined;
}

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

/** @returns the canonical CIDR, of text with white space around it or not. */
export function cidr(field: Field): string {
  const value = text(field);
  const canonical = canonicalCidr(value.trim());
  return canonical ?? fail(field, `must be a CIDR such as 10.0.0.0/8, not ${shown(value)}`);
}

/** Refuses a second address or CIDR of one family. */
export function onePerFamily(field: Field, canonical: readonly string[]): void {
  const families = canonical.map(familyOf);
  if (new Set(families).size < families.length) fail(field, 'must hold at most one per IP family');
}
