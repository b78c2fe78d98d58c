import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';

const MODULES = new URL('../../', import.meta.url).href;

/** Loads modules in a process of their own. @returns names of Node.js's own modules and of packages that it has then. */
async function loaded(...files: readonly string[]): Promise<readonly string[]> {
  const script = `
    import { registerHooks } from 'node:module';
    const packages = new Set();
    registerHooks({
      load(url, context, next) {
        const name = /node_modules\\/((?:@[^/]+\\/)?[^/]+)/.exec(url)?.[1];
        if (name !== undefined) packages.add(name);
        return next(url, context);
      },
    });
    for (const file of ${JSON.stringify(files)}) await import('${MODULES}' + file);
    console.log(JSON.stringify([...packages, ...process.moduleLoadList]));
  `;
  const { stdout } = await execa(process.execPath, ['--input-type=module', '--eval', script], {
    cwd: fileURLToPath(MODULES),
  });
  return JSON.parse(stdout) as string[];
}

describe('what portwide dns loads', () => {
  let names: readonly string[];
  before(async () => {
    names = await loaded('cmd/dns.ts');
  });

  it('has what it needs', () => {
    for (const name of ['prom-client', 'dns-packet', 'NativeModule http']) {
      assert.ok(names.includes(name), name);
    }
  });

  // Each takes megabytes of every server's memory.
  for (const name of [
    'yaml',
    'execa',
    'koffi',
    '@kubernetes/client-node',
    'NativeModule internal/deps/undici/undici',
  ]) {
    it(`has no ${name}`, () => assert.ok(!names.includes(name)));
  }
});
