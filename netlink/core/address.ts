/** IP addresses as bytes in network order, and address family numbers. */
import ipaddr from 'ipaddr.js';
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import { MalformedMessage } from './error.ts';

/** Address family numbers of Linux (sys/socket.h). */
export const AF_INET = 2;
const AF_INET6 = 10;

export function addressFamily(family: IpFamily): number {
  return family === 'IPv4' ? AF_INET : AF_INET6;
}

/** @returns undefined for a number other than AF_INET and AF_INET6. */
export function ipFamilyOf(number: number | undefined): IpFamily | undefined {
  if (number === AF_INET) return 'IPv4';
  return number === AF_INET6 ? 'IPv6' : undefined;
}

/** The bytes of an address in network order. @param address Canonical text. */
export function addressBytes(address: string): Buffer {
  const bytes = Buffer.allocUnsafe(familyOf(address) === 'IPv4' ? 4 : 16);
  writeAddress(bytes, address, 0);
  return bytes;
}

const DOT = 0x2e;
const ZERO = 0x30;

/**
 * Writes an address in network order. Parses IPv4 without ipaddr.js, which takes a microsecond per
 * address: a full sync has 100,000 addresses.
 * @param address Canonical text.
 * @returns the offset after the address.
 */
export function writeAddress(bytes: Buffer, address: string, start: number): number {
  if (familyOf(address) === 'IPv6') {
    bytes.set(ipaddr.IPv6.parse(address).toByteArray(), start);
    return start + 16;
  }
  let at = start;
  let value = 0;
  for (let index = 0; index < address.length; index++) {
    const code = address.charCodeAt(index);
    if (code === DOT) {
      bytes[at++] = value;
      value = 0;
    } else value = value * 10 + code - ZERO;
  }
  bytes[at++] = value;
  return at;
}

/**
 * Formats the bytes between two offsets as `canonicalAddress` does. It also formats IPv4-mapped
 * IPv6 addresses, which `canonicalAddress` rejects.
 */
export type AddressFormatter = (bytes: Buffer, start: number, end: number) => string;

/** IPv6 texts that a formatter keeps. */
const MAX_KNOWN = 10_000;

/**
 * Returns a formatter for one dump. Formatting an IPv6 address takes microseconds, and a dump
 * contains the same addresses many times, so the formatter caches IPv6 texts.
 * @throws MalformedMessage (the formatter) for a length other than 4 or 16 bytes.
 */
export function addressFormatter(): AddressFormatter {
  const known = new Map<string, string>();
  return (bytes, start, end) => {
    if (end - start === 4) {
      return `${bytes[start]}.${bytes[start + 1]}.${bytes[start + 2]}.${bytes[start + 3]}`;
    }
    if (end - start !== 16)
      throw new MalformedMessage(`IP address has ${end - start} bytes; must have 4 or 16`);
    const key = bytes.toString('latin1', start, end);
    let text = known.get(key);
    if (text === undefined) {
      text = new ipaddr.IPv6([...bytes.subarray(start, end)]).toRFC5952String();
      if (known.size >= MAX_KNOWN) known.clear();
      known.set(key, text);
    }
    return text;
  };
}
