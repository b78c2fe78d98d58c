/** Name limits of DNS messages, and names derived from addresses. */
import ipaddr from 'ipaddr.js';
import { canonicalAddress, familyOf } from '../api/addresses.ts';
import { describeValue } from '../api/read-field.ts';
import { isDnsSubdomain } from '../api/read-name.ts';
import { MAX_LABEL_LENGTH } from './wire.ts';

/** Domains of reverse names, by family (RFC 1035, 3.5; RFC 3596, 2.5). */
export const REVERSE_DOMAINS = { IPv4: 'in-addr.arpa', IPv6: 'ip6.arpa' } as const;

/** Longest name in a message, as text without the final dot (RFC 1035, 2.3.4). */
const MAX_NAME = 253;

/** Why a name does not fit in a message; undefined if it does. */
export function lengthProblem(name: string): string | undefined {
  if (name.length <= MAX_LABEL_LENGTH) return undefined;
  if (name.length > MAX_NAME)
    return `results in a name of more than ${MAX_NAME} characters: ${name}`;
  const label = name.split('.').find(({ length }) => length > MAX_LABEL_LENGTH);
  return label === undefined
    ? undefined
    : `results in a label of more than ${MAX_LABEL_LENGTH} characters: ${label}`;
}

/**
 * Why lower-case text is not a valid domain name; undefined if it is. Of `externalName` the API
 * server only requires a DNS-1123 subdomain, whose labels may be too long for DNS.
 */
export function domainProblem(name: string): string | undefined {
  // An IPv4 address is a valid DNS-1123 subdomain, but not a host name: CoreDNS skips it too.
  const isName = isDnsSubdomain(name) && canonicalAddress(name) === undefined;
  return isName ? lengthProblem(name) : `must be a domain name, not ${describeValue(name)}`;
}

/** Reverse name of a canonical address: `1.0.3.10.in-addr.arpa`, or 32 nibbles under `ip6.arpa`. */
export function reverseName(address: string): string {
  if (familyOf(address) === 'IPv4') {
    return `${address.split('.').reverse().join('.')}.${REVERSE_DOMAINS.IPv4}`;
  }
  const bytes = ipaddr.IPv6.parse(address).toByteArray().reverse();
  const nibbles = bytes.map((byte) => `${(byte & 15).toString(16)}.${(byte >> 4).toString(16)}`);
  return `${nibbles.join('.')}.${REVERSE_DOMAINS.IPv6}`;
}

/**
 * A canonical address as a label: `10-3-0-1`, `2001-db8--1`. CoreDNS names endpoints without a
 * hostname this way. A label must not end in a hyphen (RFC 1123, 2.1), so `fd00:0:0:1::` becomes
 * `fd00-0-0-1--0`.
 */
export function addressLabel(address: string): string {
  const label = address.replaceAll(/[.:]/g, '-');
  return label.endsWith('-') ? `${label}0` : label;
}

/** Canonical address of a label such as `10-3-0-1` or `2001-db8--1`; undefined for other labels. */
export function labelledAddress(label: string): string | undefined {
  return (
    canonicalAddress(label.replaceAll('-', '.')) ?? canonicalAddress(label.replaceAll('-', ':'))
  );
}
