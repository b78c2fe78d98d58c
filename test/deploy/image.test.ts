import assert from 'node:assert/strict';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { execa } from 'execa';
import { VERSION } from '../../process/version.ts';
import { writeBundle } from '../../scripts/bundle.ts';
import { BUNDLE, PORTWIDE } from '../portwide.ts';
import { ROOT, readText } from './manifests.ts';

/** Files and packages that the agent uses, found by following imports from its entry point. */
function closure(): { files: Set<string>; packages: Set<string> } {
  const files = new Set<string>();
  const packages = new Set<string>();
  const visit = (file: string): void => {
    if (files.has(file)) return;
    files.add(file);
    const text = readFileSync(join(ROOT, file), 'utf8');
    const specifiers = text.matchAll(
      /(?:^(?:import|export|\}).*from\s+|import\(\s*)'([^']+)'|new URL\('(\.[^']+)'/gm,
    );
    for (const [, imported, located] of specifiers) {
      const specifier = imported ?? located ?? '';
      const target = relative(ROOT, join(ROOT, dirname(file), specifier));
      if (!specifier.startsWith('.')) {
        if (!specifier.startsWith('node:')) packages.add(packageOf(specifier));
      } else if (specifier.endsWith('.ts')) visit(target);
      else files.add(target);
    }
  };
  visit('cmd/main.ts');
  return { files, packages };
}

function packageOf(specifier: string): string {
  return specifier
    .split('/')
    .slice(0, specifier.startsWith('@') ? 2 : 1)
    .join('/');
}

/** The innermost `node_modules` directory in a path. */
function nearestPackage(path: string): string {
  const parts = path.split('/');
  const start = parts.lastIndexOf('node_modules') + 1;
  return parts.slice(0, parts[start]?.startsWith('@') ? start + 2 : start + 1).join('/');
}

const { dependencies } = JSON.parse(readText('package.json'));

describe('image: Containerfile', () => {
  it('copies every file of the agent', () => {
    const { files } = closure();
    assert.ok(files.size > 50);
    const ignored = readText('.dockerignore')
      .split('\n')
      .filter((line) => line !== '' && !line.startsWith('#'));
    for (const pattern of ignored) assert.match(pattern, /^[.\w-]+$/, 'no wildcards');
    const others = ['scripts/bundle.ts', 'portwide', 'package.json', 'package-lock.json'];
    for (const file of [...files, ...others]) {
      assert.ok(existsSync(join(ROOT, file)), file);
      assert.ok(!ignored.includes(file.split('/')[0] ?? ''), `${file} is not copied`);
    }
  });

  it('installs every package that the agent uses, without development packages', () => {
    const { packages } = closure();
    assert.ok(packages.size > 5);
    for (const name of packages) assert.ok(name in dependencies, name);
  });

  it('has all packages that the bundle needs at run time', async () => {
    const [, list = ''] = /cp -a --parents (.*) \/opt/.exec(readText('Containerfile')) ?? [];
    const directory = mkdtempSync(join(tmpdir(), 'portwide-image-'));
    try {
      await writeBundle(directory);
      for (const path of list.split(' ')) {
        const copy = join(directory, 'node_modules', path);
        mkdirSync(dirname(copy), { recursive: true });
        // Linked instead of copied: Node.js takes a hundred megabytes. koffi is found by name, with
        // its own binary.
        const real = path === 'koffi' || path.startsWith('@');
        if (real) cpSync(join(ROOT, 'node_modules', path), copy, { recursive: true });
        else symlinkSync(join(ROOT, 'node_modules', path), copy);
      }
      const agent = join(directory, 'portwide');
      assert.equal((await execa(agent, ['--version'])).stdout, VERSION);
      // Opens a netlink socket with koffi.
      const { stderr } = await execa(agent, ['ipvs', 'marks'], { reject: false });
      assert.doesNotMatch(stderr, /Cannot find|ERR_MODULE/);
    } finally {
      rmSync(directory, { recursive: true, force: true });
    }
  });

  it('has the licence of each bundled package', () => {
    const directory = join(BUNDLE, 'bundle');
    const scripts = readdirSync(directory).filter((name) => name.endsWith('.mjs'));
    const text = scripts.map((name) => readFileSync(join(directory, name), 'utf8')).join('\n');
    // esbuild writes the name of each file before its content.
    const files = text.matchAll(/^ *\/\/ (node_modules\/.*)\/[^/]+$/gm);
    const given = readFileSync(join(directory, 'LICENSES'), 'utf8');
    const packages = new Set([...files].map(([, file = '']) => nearestPackage(file)));
    assert.ok(packages.size > 20);
    for (const found of packages) assert.ok(given.includes(`=== ${found}\n`), found);
  });

  it('contains compiled code for the agent and the DNS server', async () => {
    const runs = readText('Containerfile').matchAll(
      /\/opt\/portwide\/portwide ([a-z -]+?)(?: \\)?$/gm,
    );
    const cache = mkdtempSync(join(tmpdir(), 'portwide-image-'));
    const env = { NODE_COMPILE_CACHE: cache };
    // Node.js uses a directory for each set of V8's flags and ignores the others.
    const fileCount = () => readdirSync(cache, { recursive: true }).length;
    try {
      for (const [, args = ''] of runs) await execa(PORTWIDE, args.split(' '), { env });
      const before = fileCount();
      assert.ok(before > 0);
      for (const command of ['run', 'dns']) await execa(PORTWIDE, [command, '--help'], { env });
      assert.equal(fileCount(), before);
    } finally {
      rmSync(cache, { recursive: true, force: true });
    }
  });

  it('installs the packages of the commands that the agent runs', () => {
    const [, installed = ''] =
      /apt-get install \S+ \S+ (.*) \\\n/.exec(readText('Containerfile')) ?? [];
    const commands = [...closure().files].flatMap((file) =>
      [...readText(file).matchAll(/(?:execa|Program)\(\s*['`]([a-z]+)/g)].map(
        ([, command]) => command,
      ),
    );
    // Other calls get the name from a variable; these are iptables.
    // nsenter is part of util-linux, which every Debian image has.
    assert.deepEqual([...new Set(commands)].sort(), ['nsenter']);
    assert.deepEqual(installed.split(' '), ['iptables']);
  });

  it('builds with the Node.js that it ships, on tagged base images', () => {
    const bases = [...readText('Containerfile').matchAll(/^FROM (\S+)/gm)].map(([, base]) => base);
    assert.deepEqual(bases, [
      `docker.io/library/node:${dependencies.node}-bookworm-slim`,
      'docker.io/library/debian:bookworm-slim',
    ]);
  });
});
