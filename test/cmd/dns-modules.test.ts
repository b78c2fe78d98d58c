import assert from 'node:assert/strict';
import { loadedModules } from './loaded-modules.ts';

describe('dns-modules: modules that portwide dns loads', () => {
  let names: readonly string[];
  before(async () => {
    names = await loadedModules('dns', '--help');
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
