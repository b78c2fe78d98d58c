import assert from 'node:assert/strict';
import { keepsConnReuseMode } from '../../agent/ipvs-mode.ts';

describe('ipvs-mode: keepsConnReuseMode', () => {
  for (const [release, keeps] of [
    ['3.10.0-1160.el7.x86_64', true],
    ['4.0.9', true],
    ['4.1.0', false],
    ['4.19.0-26-amd64', false],
    ['5.4.0-150-generic', false],
    ['5.8.18', false],
    ['5.9.0', true],
    ['5.10.0-28-amd64', true],
    ['6.1.0-rc1+', true],
    ['10.0', true],
  ] as const) {
    it(`${keeps ? 'keeps' : 'disables'} conn_reuse_mode in Linux ${release}`, () => {
      assert.equal(keepsConnReuseMode(release), keeps);
    });
  }
});
