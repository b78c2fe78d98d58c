/** A directory for PATH with an nft that crashes, as nft 1.0.6 does beside some tables of nft 1.1.3. */
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export interface CrashingNft {
  readonly path: string;
  /** Whether a program has run nft. */
  hasRun(): boolean;
  remove(): void;
}

export function crashingNft(): CrashingNft {
  const directory = mkdtempSync(join(tmpdir(), 'portwide-crashing-nft-'));
  const runs = join(directory, 'runs');
  const script = `#!/bin/sh\necho "$@" >> ${runs}\nkill -SEGV $$\n`;
  writeFileSync(join(directory, 'nft'), script, { mode: 0o755 });
  return {
    path: `${directory}:${process.env.PATH}`,
    hasRun: () => existsSync(runs),
    remove: () => rmSync(directory, { recursive: true, force: true }),
  };
}
