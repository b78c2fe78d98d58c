/** The files of an installation: launcher, bundle, Node.js and koffi for one architecture. */
import { copyFileSync, mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { execa } from 'execa';
import {
  ARCHITECTURES,
  type Architecture,
  koffiBinaryPackage,
  koffiPackage,
  nodePackage,
  ROOT,
  unpack,
} from './npm-packages.ts';

/**
 * Writes an installation.
 *
 * @param bundle directory that `writeBundle` has written
 */
export async function writeTree(directory: string, bundle: string, arch: Architecture) {
  mkdirSync(directory, { recursive: true });
  await execa('cp', ['-a', `${bundle}/.`, directory]);
  for (const file of ['kubectl-portwide', 'LICENSE']) {
    copyFileSync(join(ROOT, file), join(directory, file));
  }
  const packages = join(directory, 'node_modules');
  await unpack(nodePackage(arch), ['bin/node', 'LICENSE'], join(packages, 'node'));
  mkdirSync(join(packages, '.bin'));
  symlinkSync('../node/bin/node', join(packages, '.bin', 'node'));
  // Without its C++ sources. The package of the binary has no licence file, because that of koffi
  // is for both.
  const koffi = [
    'package.json',
    'LICENSE.txt',
    'index.cjs',
    'src/koffi/index.cjs',
    'src/koffi/src/static.cjs',
  ];
  await unpack(koffiPackage(), koffi, join(packages, 'koffi'));
  // Without the binary for musl: Node.js here needs glibc.
  const binary = koffiBinaryPackage(arch);
  const files = ['package.json', 'index.js', `linux_${ARCHITECTURES[arch]}`];
  await unpack(binary, files, join(packages, binary.name));
  await execa('chmod', ['-R', 'u=rwX,go=rX', directory]);
}
