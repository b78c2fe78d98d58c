/** Addresses as netlink has them, in bytes of network order, and the numbers of their families. */
import ipaddr from 'ipaddr.js';
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import { MalformedMessage } from './error.ts';

/** Linux's numbers (sys/socket.h). */
export const AF_INET = 2;
const AF_INET6 = 10;

export function addressFamily(family: IpFamily): number {
  return family === 'IPv4' ? AF_INET : AF_INET6;
}

/** @returns undefined for another number than those of IP. */
export function ipFamilyOf(number: number | undefined): IpFamily | undefined {
  if (number === AF_INET) return 'IPv4';
  return number === AF_INET6 ? 'IPv6' : undefined;
}

/** Network order. @param address Canonical text. */
export function addressBytes(address: string): Buffer {
  const bytes = Buffer.allocUnsafe(familyOf(address) === 'IPv4' ? 4 : 16);
  writeAddress(bytes, address, 0);
  return bytes;
}

const DOT = 0x2e;
const ZERO = 0x30;

/**
 * Writes an address in network order. IPv4 is read here: a load has 100,000 of them, and ipaddr.js
 * takes a microsecond for each.
 * @param address Canonical text.
 * @returns where it ends.
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

/** @returns text as `canonicalAddress` gives it, but for IPv4-mapped IPv6, which that refuses. */
export type AddressFormatter = (bytes: Buffer, start: number, end: number) => string;

/**
 * A formatter for one dump. IPv6 text costs microseconds and dumps repeat their addresses, so it
 * remembers them.
 * @throws MalformedMessage (the formatter) when there are neither 4 nor 16 bytes.
 */
export function addressFormatter(): AddressFormatter {
  const known = new Map<string, string>();
  return (bytes, start, end) => {
    if (end - start === 4) {
      return `${bytes[start]}.${bytes[start + 1]}.${bytes[start + 2]}.${bytes[start + 3]}`;
    }
    if (end - start !== 16) throw new MalformedMessage(`address of ${end - start} bytes`);
    const key = bytes.toString('latin1', start, end);
    let text = known.get(key);
    if (text === undefined) {
      text = new ipaddr.IPv6([...bytes.subarray(start, end)]).toRFC5952String();
      known.set(key, text);
    }
    return text;
  };
}
