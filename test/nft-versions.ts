/** Versions of nft that scripts/nft.sh has unpacked. */
import { join } from 'node:path';

/** The directory of scripts/debian-packages.sh. */
export const CACHE = process.env.PORTWIDE_KERNELS ?? '/var/cache/portwide-kernels';

/** The path of an nft, such as 1.1.3 or newest. */
export function nftOfVersion(version: string): string {
  return join(CACHE, `nft-${version}`, 'nft');
}
