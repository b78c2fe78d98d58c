import assert from 'node:assert/strict';
import { execa } from 'execa';

const MAIN = new URL('../../cmd/main.ts', import.meta.url).href;

/** Runs a command in a process of its own. @returns names of Node.js's own modules and of packages that it has loaded. */
async function loaded(...args: readonly string[]): Promise<readonly string[]> {
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
    process.on('exit', () => {
      console.error(JSON.stringify([...packages, ...process.moduleLoadList]));
    });
    process.argv.splice(1, 0, 'portwide');
    await import('${MAIN}');
  `;
  const options = ['--input-type=module', '--eval', script, '--', ...args];
  const { stderr } = await execa(process.execPath, options);
  return JSON.parse(stderr) as string[];
}

describe('dns-modules: modules that portwide dns loads', () => {
  let names: readonly string[];
  before(async () => {
    names = await loaded('dns', '--help');
  });

  it('include the modules it needs', () => {
    for (const name of ['prom-client', 'dns-packet', 'NativeModule http']) {
      assert.ok(names.includes(name), name);
    }
  });

  // Each costs megabytes of memory.
  for (const name of [
    'yaml',
    'execa',
    'koffi',
    '@kubernetes/client-node',
    'NativeModule internal/deps/undici/undici',
  ]) {
    it(`do not include ${name}`, () => assert.ok(!names.includes(name)));
  }
});
