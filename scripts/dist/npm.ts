/** The npm package: launcher, plugin of kubectl and bundle, but not Node.js. */
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { execa } from 'execa';
import { gzip } from './archive.ts';
import { koffiPackage, ROOT } from './npm-packages.ts';

/**
 * Writes the package as portwide-npm-VERSION.tgz: the Helm chart is portwide-VERSION.tgz. npm sets the same time and owner
 * for all files, and sorts them.
 *
 * @param bundle directory that `writeBundle` has written
 * @param directory new directory for its files
 */
export async function writeNpmPackage(
  output: string,
  bundle: string,
  directory: string,
): Promise<void> {
  mkdirSync(directory, { recursive: true });
  await execa('cp', ['-a', `${bundle}/.`, directory]);
  for (const file of ['kubectl-portwide', 'LICENSE', 'README.md']) {
    copyFileSync(join(ROOT, file), join(directory, file));
  }
  const { name, version, description, license, type, engines, bin } = JSON.parse(
    readFileSync(join(ROOT, 'package.json'), 'utf8'),
  );
  const manifest = {
    ...{ name, version, description, license, type, engines, os: ['linux'], bin },
    // All others are in the bundle. Who has npm has Node.js.
    dependencies: { koffi: koffiPackage().version },
  };
  writeFileSync(join(directory, 'package.json'), `${JSON.stringify(manifest, null, 2)}\n`);
  await execa('chmod', ['-R', 'u=rwX,go=rX', directory]);
  const { stdout } = await execa('npm', ['pack', '--silent'], { cwd: directory });
  const packed = gunzipSync(readFileSync(join(directory, stdout.trim())));
  writeFileSync(join(output, `portwide-npm-${version}.tgz`), await gzip(packed));
}
