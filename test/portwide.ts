/**
 * The agent that tests start, bundled as in the image. A start from the sources takes twice the
 * CPU, and seconds in user-mode-linux.
 */
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const PACKAGES = new URL('../node_modules', import.meta.url).pathname;
/** Names the directory of an existing bundle, for processes that tests start. */
export const BUNDLE_VARIABLE = 'PORTWIDE_TEST_BUNDLE';

/** Directory of the bundle, made from the current sources; removed when this process exits. */
export const BUNDLE: string = process.env[BUNDLE_VARIABLE] ?? (await makeBundle());

/** The launcher in the bundle. */
export const PORTWIDE = join(BUNDLE, 'portwide');

async function makeBundle(): Promise<string> {
  const { NOT_BUNDLED, writeBundle } = await import('../scripts/bundle.ts');
  const directory = mkdtempSync(join(tmpdir(), 'portwide-bundle-'));
  process.once('exit', () => rmSync(directory, { recursive: true, force: true }));
  await writeBundle(directory);
  // A separate directory, because the launcher stores compiled code there.
  mkdirSync(join(directory, 'node_modules'));
  for (const name of ['.bin', ...NOT_BUNDLED]) {
    symlinkSync(join(PACKAGES, name), join(directory, 'node_modules', name));
  }
  return directory;
}
