/** Debian packages, built by dpkg-deb: the files in debian/, man pages, completion and a tree. */

import { createHash } from 'node:crypto';
import {
  chmodSync,
  copyFileSync,
  cpSync,
  globSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { execa } from 'execa';
import { createProgram } from '../../cmd/program.ts';
import { VERSION } from '../../process/version.ts';
import { gzip } from './archive.ts';
import type { Installation } from './build.ts';
import { kubectlPage, manPages } from './man.ts';
import { type Architecture, ROOT } from './npm-packages.ts';

const FILES = join(ROOT, 'scripts/dist/debian');
const CACHE = '/var/cache/portwide';
/** `~` sorts before the release. */
const DEBIAN_VERSION = VERSION.replace('-', '~');
/**
 * Packages that the agent needs, and libraries of Node.js. The agent uses netlink instead of the
 * programs nft, conntrack, ipset and ipvsadm.
 */
export const DEPENDS = ['iptables', 'libc6 (>= 2.28)', 'libgcc-s1', 'libstdc++6 (>= 7)'] as const;
/** The kernel runs modprobe for modules of iptables and IPVS. */
const RECOMMENDS = ['kmod'];
/** Where shells look for completion. */
const COMPLETION = {
  bash: 'usr/share/bash-completion/completions/portwide',
  zsh: 'usr/share/zsh/vendor-completions/_portwide',
  fish: 'usr/share/fish/vendor_completions.d/portwide.fish',
} as const;

/**
 * Builds a package.
 *
 * @param root empty directory, which gets the files as installed
 * @param date time of the files, seconds since 1970
 */
export async function writeDeb(
  output: string,
  { tree, architecture }: Installation,
  root: string,
  date: number,
): Promise<void> {
  const library = join(root, 'usr/lib/portwide');
  mkdirSync(dirname(library), { recursive: true });
  cpSync(tree, library, { recursive: true, verbatimSymlinks: true });
  // Debian has the text of this licence.
  rmSync(join(library, 'LICENSE'));
  // The launcher stores compiled code there. In /var it may change.
  mkdirSync(join(root, CACHE), { recursive: true });
  mkdirSync(join(library, 'node_modules/.cache'));
  symlinkSync(CACHE, join(library, 'node_modules/.cache/portwide'));
  mkdirSync(join(root, 'usr/bin'));
  for (const name of ['portwide', 'kubectl-portwide']) {
    symlinkSync(`../lib/portwide/${name}`, join(root, 'usr/bin', name));
  }
  install(root, 'portwide.service', 'usr/lib/systemd/system/portwide.service');
  install(root, 'config.yaml', 'etc/portwide/config.yaml');
  install(root, 'copyright', 'usr/share/doc/portwide/copyright');
  await writeManPages(join(root, 'usr/share/man/man1'), date);
  for (const [shell, path] of Object.entries(COMPLETION)) {
    const { stdout } = await execa(join(ROOT, 'portwide'), ['completion', shell]);
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), `${stdout}\n`);
  }
  writeControl(root, architecture);
  await execa('chmod', ['-R', 'u=rwX,go=rX', root]);
  const file = join(output, `portwide_${DEBIAN_VERSION}_${architecture}.deb`);
  // zstd takes a fifth of the time of xz. One thread, because the bytes may depend on the number.
  await execa(
    'dpkg-deb',
    ['--root-owner-group', '-Zzstd', '-z9', '--threads-max=1', '--build', root, file],
    { env: { SOURCE_DATE_EPOCH: String(date) } },
  );
}

function install(root: string, name: string, path: string): void {
  mkdirSync(dirname(join(root, path)), { recursive: true });
  copyFileSync(join(FILES, name), join(root, path));
}

async function writeManPages(directory: string, date: number): Promise<void> {
  mkdirSync(directory, { recursive: true });
  const source = { version: VERSION, date };
  const { stdout: help } = await execa(join(ROOT, 'kubectl-portwide'), ['--help']);
  const pages = manPages(await createProgram(), source).set(
    'kubectl-portwide.1',
    kubectlPage(help, source),
  );
  // Level 9, as Debian's policy asks for.
  for (const [name, page] of pages) {
    writeFileSync(join(directory, `${name}.gz`), await gzip(page, 9));
  }
}

function writeControl(root: string, arch: Architecture): void {
  const paths = globSync('{etc,usr,var}/**', { cwd: root }).sort();
  const files = paths.filter((path) => lstatSync(join(root, path)).isFile());
  // As dpkg-gencontrol: whole KiB of each file, and one for everything else.
  const sizes = paths.map((path) => {
    const stats = lstatSync(join(root, path));
    return stats.isFile() ? Math.ceil(stats.size / 1024) : 1;
  });
  const control = join(root, 'DEBIAN');
  mkdirSync(control);
  const fields = {
    Package: 'portwide',
    Version: DEBIAN_VERSION,
    Architecture: arch,
    Maintainer: 'The authors of Portwide <portwide@example.invalid>',
    'Installed-Size': sizes.reduce((sum, size) => sum + size, 0),
    Depends: DEPENDS.join(', '),
    Recommends: RECOMMENDS.join(', '),
    Section: 'net',
    Priority: 'optional',
    Description: `Kubernetes service proxy that serves all-ports Services
 Portwide replaces kube-proxy on a node. It can serve a Service on every port,
 or on port ranges, and enforces network policy.
 .
 portwide.service runs it outside of Kubernetes. The package neither enables nor
 starts the service, which needs /etc/portwide/kubeconfig. After the package is
 removed, rules stay in the kernel: run "portwide cleanup" before.`,
  };
  const lines = Object.entries(fields).map(([name, value]) => `${name}: ${value}\n`);
  writeFileSync(join(control, 'control'), lines.join(''));
  writeFileSync(join(control, 'conffiles'), '/etc/portwide/config.yaml\n');
  const sums = files
    .filter((path) => !path.startsWith('etc/'))
    .map((path) => `${md5(join(root, path))}  ${path}\n`);
  writeFileSync(join(control, 'md5sums'), sums.join(''));
  for (const name of ['postinst', 'prerm', 'postrm']) {
    copyFileSync(join(FILES, name), join(control, name));
    chmodSync(join(control, name), 0o755);
  }
}

function md5(file: string): string {
  return createHash('md5').update(readFileSync(file)).digest('hex');
}
