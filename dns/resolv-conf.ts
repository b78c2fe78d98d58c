import { isIP } from 'node:net';
import { canonicalAddress } from '../api/addresses.ts';

/** To connect to no address in particular is to connect to the host itself. */
const SELF: ReadonlyMap<string, string> = new Map([
  ['0.0.0.0', '127.0.0.1'],
  ['::', '::1'],
]);

/**
 * The resolvers that a resolv.conf(5) names, in its order: canonical addresses, those that are none of
 * a link. Its search list and its options are for those who ask, and say nothing to a server.
 */
export function readResolvConf(text: string): string[] {
  return text.split('\n').flatMap((line) => {
    const [keyword, given = ''] = line.trim().split(/\s+/);
    if (keyword !== 'nameserver' || isIP(given) === 0) return [];
    const address = canonicalAddress(given) ?? given;
    return [SELF.get(address) ?? address];
  });
}
