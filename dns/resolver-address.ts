/** Parses and formats resolver addresses of `--forward` and resolv.conf. */
import { isIP } from 'node:net';
import { canonicalAddress, socketAddress } from '../api/addresses.ts';
import type { Resolver } from './exchange.ts';

const DNS_PORT = 53;
const MAX_PORT = 65_535;

/** Connecting to an unspecified address connects to the local host. */
const SELF: ReadonlyMap<string, string> = new Map([
  ['0.0.0.0', '127.0.0.1'],
  ['::', '::1'],
]);

/**
 * Parses `10.0.0.1`, `10.0.0.1:5353`, `fd00::1`, `[fd00::1]:5353`, or link-local `fe80::1%eth0` and
 * `[fe80::1%eth0]:5353`.
 * @returns undefined for any other text.
 */
export function parseResolver(text: string): Resolver | undefined {
  if (isIP(text) !== 0) return { address: canonical(text), port: DNS_PORT };
  const [, inBrackets, plain, digits] =
    /^(?:\[([^\]]+)\]|([^:]+))(?::(\d{1,5}))?$/.exec(text) ?? [];
  const address = inBrackets ?? plain ?? '';
  const port = digits === undefined ? DNS_PORT : Number(digits);
  const family = inBrackets === undefined ? 4 : 6;
  if (isIP(address) !== family || port < 1 || port > MAX_PORT) return undefined;
  return { address: canonical(address), port };
}

/**
 * Reads the nameservers of a resolv.conf(5), in order. A port is written as in `parseResolver`; few
 * systems support that. Search list and options apply to stub resolvers only and are ignored.
 */
export function readResolvConf(text: string): Resolver[] {
  return text.split('\n').flatMap((line) => {
    const [keyword, given = ''] = line.trim().split(/\s+/);
    return keyword === 'nameserver' ? (parseResolver(given) ?? []) : [];
  });
}

/** Inverse of `parseResolver`; leaves out port 53. */
export function formatResolver({ address, port }: Resolver): string {
  return socketAddress(address, port === DNS_PORT ? undefined : port);
}

/** Canonical form of the address. Link-local addresses with a zone stay as they are. */
function canonical(given: string): string {
  const address = canonicalAddress(given) ?? given;
  return SELF.get(address) ?? address;
}
