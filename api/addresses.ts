/** Canonical text and classification of IP addresses and CIDRs. */
import ipaddr from 'ipaddr.js';
import type { IpFamily } from './objects.ts';

/** Bits of an address: the prefix length of a single address. */
export const ADDRESS_BITS: Readonly<Record<IpFamily, number>> = { IPv4: 32, IPv6: 128 };

/**
 * Canonical text of an IP address: dotted quad, or RFC 5952 for IPv6.
 * @returns undefined when the text is not an address. IPv4 must be four plain decimal parts, and
 * IPv4-mapped IPv6 is rejected: parsers disagree about IPv4-mapped addresses and about inet_aton's
 * shorthand and octal forms (CVE-2021-29923). Zone ids are rejected because no rule can carry them.
 */
export function canonicalAddress(text: string): string | undefined {
  if (ipaddr.IPv4.isValidFourPartDecimal(text)) return text;
  if (text.includes('%') || !ipaddr.IPv6.isValid(text)) return undefined;
  const address = ipaddr.IPv6.parse(text);
  return address.isIPv4MappedAddress() ? undefined : address.toRFC5952String();
}

/**
 * An address or CIDR as kube-proxy reads it (Go's ParseIPSloppy and ParseCIDRSloppy): decimal without leading zeros, and
 * IPv4-mapped IPv6 as IPv4. API servers accepted and stored such text before Go 1.17 and KEP-4858. Only for fields of
 * Services and EndpointSlices: other parsers read octal numbers (CVE-2021-29923), or IPv6.
 * @returns the text itself if there is nothing to change, or it cannot be read.
 */
export function sloppyText(text: string): string {
  const decimal = text.replace(/(?:^|:)\d+(?:\.\d+){3}(?:\/\d+)?$/, (ipv4) =>
    ipv4.replaceAll(/(?<!\d)0+(?=\d)/g, ''),
  );
  const [host = '', length, ...rest] = decimal.split('/');
  if (rest.length > 0 || host.includes('%') || !ipaddr.IPv6.isValid(host)) return decimal;
  const address = ipaddr.IPv6.parse(host);
  if (!address.isIPv4MappedAddress()) return decimal;
  const ipv4 = address.toIPv4Address().toString();
  if (length === undefined) return ipv4;
  return /^\d{2,3}$/.test(length) && Number(length) >= 96
    ? `${ipv4}/${Number(length) - 96}`
    : decimal;
}

/**
 * Canonical text of a CIDR with the host bits cleared, as the kernel stores it.
 * @returns undefined when the text is not a CIDR.
 */
export function canonicalCidr(text: string): string | undefined {
  const [host, length, ...rest] = text.split('/');
  if (host === undefined || length === undefined || rest.length > 0 || !/^\d{1,3}$/.test(length)) {
    return undefined;
  }
  const address = canonicalAddress(host);
  if (address === undefined) return undefined;
  const bits = Number(length);
  const cidr = `${address}/${bits}`;
  if (familyOf(address) === 'IPv4') {
    return bits > 32 ? undefined : `${ipaddr.IPv4.networkAddressFromCIDR(cidr)}/${bits}`;
  }
  if (bits > 128) return undefined;
  return `${ipaddr.IPv6.networkAddressFromCIDR(cidr).toRFC5952String()}/${bits}`;
}

/** IP family of a canonical address or CIDR. */
export function familyOf(canonical: string): IpFamily {
  return canonical.includes(':') ? 'IPv6' : 'IPv4';
}

/** `10.0.0.1:80` or `[fd00::1]:80`. Without a port, the bare address. */
export function socketAddress(address: string, port: number | undefined): string {
  if (port === undefined) return address;
  return familyOf(address) === 'IPv6' ? `[${address}]:${port}` : `${address}:${port}`;
}

/** Whether a canonical CIDR contains a canonical address. False if the IP families differ. */
export function cidrContains(cidr: string, address: string): boolean {
  if (familyOf(cidr) !== familyOf(address)) return false;
  return familyOf(cidr) === 'IPv4'
    ? ipaddr.IPv4.parse(address).match(ipaddr.IPv4.parseCIDR(cidr))
    : ipaddr.IPv6.parse(address).match(ipaddr.IPv6.parseCIDR(cidr));
}

/** The bytes of a canonical address in network order. */
export function addressOctets(address: string): readonly number[] {
  return ipaddr.parse(address).toByteArray();
}

export function isLoopback(address: string): boolean {
  return address === '::1' || address.startsWith('127.');
}

/**
 * Whether an address is `0.0.0.0` or `::`. Go servers treat either as "all addresses of both
 * families".
 */
export function isUnspecified(address: string): boolean {
  return address === '0.0.0.0' || address === '::';
}

/**
 * Whether an address is in fe80::/10. A link-local address is only meaningful together with an
 * interface.
 */
export function isLinkLocal(address: string): boolean {
  return /^fe[89ab][0-9a-f]:/.test(address);
}

/** Ranges whose addresses do not identify one host on the network. */
export type SpecialRange = 'unspecified' | 'loopback' | 'link-local' | 'multicast' | 'broadcast';

/**
 * @returns the special range that contains a canonical address; undefined if no special range does.
 */
export function specialRange(canonical: string): SpecialRange | undefined {
  if (isUnspecified(canonical)) return 'unspecified';
  if (isLoopback(canonical)) return 'loopback';
  if (isLinkLocal(canonical) || canonical.startsWith('169.254.')) return 'link-local';
  if (canonical === '255.255.255.255') return 'broadcast';
  return /^(22[4-9]|23\d)\.|^ff[0-9a-f]{2}:/.test(canonical) ? 'multicast' : undefined;
}

/** The last byte of a canonical address, 0 to 255. */
export function lastByte(address: string): number {
  const bytes = ipaddr.parse(address).toByteArray();
  return bytes[bytes.length - 1] ?? 0;
}

/** Orders canonical addresses of one family as numbers. */
export function compareAddresses(a: string, b: string): number {
  const [first, second] = [ipaddr.parse(a).toByteArray(), ipaddr.parse(b).toByteArray()];
  const at = first.findIndex((byte, index) => byte !== second[index]);
  return at < 0 ? 0 : (first[at] ?? 0) - (second[at] ?? 0);
}
