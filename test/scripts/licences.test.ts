import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';

const SCRIPT = new URL('../../scripts/licences.ts', import.meta.url).pathname;
const ROOT = new URL('../..', import.meta.url).pathname;

describe('licences of production packages', () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-licences-'));
  });
  afterEach(() => rmSync(directory, { recursive: true, force: true }));

  const check = async (checkout: string) => {
    const result = await execa(process.execPath, [SCRIPT, checkout], { reject: false });
    return { status: result.exitCode, stdout: result.stdout, stderr: result.stderr };
  };

  const lock = (packages: object) =>
    writeFileSync(join(directory, 'package-lock.json'), JSON.stringify({ packages }));
  const install = (path: string, license?: string) => {
    mkdirSync(join(directory, path), { recursive: true });
    writeFileSync(join(directory, path, 'package.json'), JSON.stringify({ license }));
  };

  it('allows the licences in this checkout', async () => {
    const { status, stdout, stderr } = await check(ROOT);
    assert.deepEqual([status, stderr], [0, '']);
    assert.match(stdout, /^\d{2,} production packages/);
  });

  it('allows a choice with an allowed licence, and packages for development', async () => {
    install('node_modules/choice', '(GPL-3.0-only OR MIT)');
    install('node_modules/tool', 'GPL-3.0-only');
    lock({ '': {}, 'node_modules/choice': {}, 'node_modules/tool': { dev: true } });
    assert.equal((await check(directory)).status, 0);
  });

  it('refuses other licences, none, and both of two; reads those not installed from the lock', async () => {
    install('node_modules/copyleft', 'AGPL-3.0-only');
    install('node_modules/copyleft/node_modules/nested', 'MIT AND GPL-2.0-only');
    install('node_modules/none');
    lock({
      '': {},
      'node_modules/copyleft': { license: 'MIT' },
      'node_modules/copyleft/node_modules/nested': {},
      'node_modules/none': {},
      'node_modules/other-platform': { license: 'SSPL-1.0', optional: true },
    });
    const { status, stderr } = await check(directory);
    assert.equal(status, 1);
    assert.deepEqual(stderr.split('\n').slice(0, -1), [
      'node_modules/copyleft: AGPL-3.0-only',
      'node_modules/copyleft/node_modules/nested: MIT AND GPL-2.0-only',
      'node_modules/none: no licence in package.json',
      'node_modules/other-platform: SSPL-1.0',
    ]);
  });
});
