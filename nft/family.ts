/** IP families as nft names them in rules. */
import type { IpFamily } from '../api/objects.ts';

export function nftFamily(family: IpFamily): 'ip' | 'ip6' {
  return family === 'IPv4' ? 'ip' : 'ip6';
}
