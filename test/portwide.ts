/** The agent that tests start: bundled as in the image, for a start from the sources takes twice the CPU, and in user-mode-linux seconds. */
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const PACKAGES = new URL('../node_modules', import.meta.url).pathname;
/** Names the directory of a bundle that is there already, for processes that tests start. */
export const BUNDLE_VARIABLE = 'PORTWIDE_TEST_BUNDLE';

/** The directory of the bundle, made of the sources as they are now; it goes when this process ends. */
export const BUNDLE: string = process.env[BUNDLE_VARIABLE] ?? (await makeBundle());

/** The launcher in it. */
export const PORTWIDE = join(BUNDLE, 'portwide');

async function makeBundle(): Promise<string> {
  const { NOT_BUNDLED, writeBundle } = await import('../scripts/bundle.ts');
  const directory = mkdtempSync(join(tmpdir(), 'portwide-bundle-'));
  process.once('exit', () => rmSync(directory, { recursive: true, force: true }));
  await writeBundle(directory);
  // A directory of its own, for the launcher keeps compiled code there.
  mkdirSync(join(directory, 'node_modules'));
  for (const name of ['.bin', ...NOT_BUNDLED]) {
    symlinkSync(join(PACKAGES, name), join(directory, 'node_modules', name));
  }
  return directory;
}
