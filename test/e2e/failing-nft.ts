import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const NFT = '/usr/sbin/nft';

/** A directory with a command nft that fails when its script declares the agent's table of IPv6. */
export function failingNft(): { readonly env: { readonly PATH: string }; remove(): void } {
  const directory = mkdtempSync(join(tmpdir(), 'portwide-commands-'));
  // In its own process, because the agent recognizes its own changes by the process id.
  const script = `#!/bin/sh
    [ "$1" = --version ] && exec ${NFT} "$@"
    cat > ${directory}/$$
    grep -q 'table ip6 portwide {' ${directory}/$$ && { echo 'failing on demand' >&2; exit 1; }
    [ "$1" = --check ] && exec ${NFT} --check -f ${directory}/$$
    exec ${NFT} -f ${directory}/$$`;
  writeFileSync(join(directory, 'nft'), script, { mode: 0o755 });
  return {
    env: { PATH: `${directory}:${process.env.PATH}` },
    remove: () => rmSync(directory, { recursive: true, force: true }),
  };
}
