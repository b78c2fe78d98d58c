import { isIP } from 'node:net';

/**
 * The resolvers that a resolv.conf(5) names, in its order. Its search list and its options are for those who
 * ask, and say nothing to a server.
 */
export function readResolvConf(text: string): string[] {
  return text.split('\n').flatMap((line) => {
    const [keyword, address = ''] = line.trim().split(/\s+/);
    return keyword === 'nameserver' && isIP(address) !== 0 ? [address] : [];
  });
}
