import type { Resolver } from './exchange.ts';
import { parseResolver } from './resolver-address.ts';

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
