/** What all artefacts are made of. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeBundle } from '../bundle.ts';
import type { Architecture } from './npm-packages.ts';
import { writeTree } from './tree.ts';

/** An installation for one architecture. */
export interface Installation {
  readonly architecture: Architecture;
  /** Directory that `writeTree` has written. */
  readonly tree: string;
  /** Paths of the packages in its bundle. */
  readonly bundled: readonly string[];
}

export interface Build {
  /** Temporary directory with everything below. */
  readonly work: string;
  /** Directory that `writeBundle` has written. */
  readonly bundle: string;
  /** Directory with the source maps of the bundle. */
  readonly maps: string;
  readonly bundled: readonly string[];
  /** Makes an installation in `work`, with this name. */
  install(architecture: Architecture, name: string): Promise<Installation>;
}

/** Makes the bundle in a temporary directory, which is removed when `use` has ended. */
export async function withBuild(use: (build: Build) => Promise<void>): Promise<void> {
  const work = mkdtempSync(join(tmpdir(), 'portwide-dist-'));
  try {
    const bundle = join(work, 'bundle');
    const maps = join(work, 'maps');
    const bundled = await writeBundle(bundle, { sourceMaps: join(maps, 'bundle') });
    const install = async (architecture: Architecture, name: string) => {
      const tree = join(work, name);
      await writeTree(tree, bundle, architecture);
      return { architecture, tree, bundled };
    };
    await use({ work, bundle, maps, bundled, install });
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}
