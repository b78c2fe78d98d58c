/** Resolvers, as `--forward` and resolv.conf name them. */
import { isIP } from 'node:net';
import { canonicalAddress, socketAddress } from '../api/addresses.ts';
import type { Resolver } from './exchange.ts';

/** Where resolvers listen. */
const DNS_PORT = 53;
const MAX_PORT = 65_535;

/** To connect to no address in particular is to connect to the host itself. */
const SELF: ReadonlyMap<string, string> = new Map([
  ['0.0.0.0', '127.0.0.1'],
  ['::', '::1'],
]);

/**
 * `10.0.0.1`, `10.0.0.1:5353`, `fd00::1`, `[fd00::1]:5353`; of a link, `fe80::1%eth0` and `[fe80::1%eth0]:5353`.
 * @returns undefined for text that is none of these.
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
 * The resolvers that a resolv.conf(5) names, in its order. A port, which few systems know, is written as for
 * `parseResolver`. The search list and the options are for those who ask, and say nothing to a server.
 */
export function readResolvConf(text: string): Resolver[] {
  return text.split('\n').flatMap((line) => {
    const [keyword, given = ''] = line.trim().split(/\s+/);
    return keyword === 'nameserver' ? (parseResolver(given) ?? []) : [];
  });
}

/** As `parseResolver` reads it; without the port when that is 53. */
export function formatResolver({ address, port }: Resolver): string {
  return socketAddress(address, port === DNS_PORT ? undefined : port);
}

/** Canonical, unless it is of a link. */
function canonical(given: string): string {
  const address = canonicalAddress(given) ?? given;
  return SELF.get(address) ?? address;
}
