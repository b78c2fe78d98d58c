import assert from 'node:assert/strict';
import { flagValues } from '../../config/flag-values.ts';

describe('flag-values: the values of flags, for people', () => {
  it('are those that were given, and the defaults', () => {
    const flags = flagValues({ v: '3', proxyMode: 'ipvs' });
    assert.deepEqual(
      [flags.v, flags['proxy-mode'], flags['oom-score-adj'], flags.cleanup, flags.config],
      ['3', 'ipvs', '-999', 'false', ''],
    );
    assert.equal(flags.acceptContentTypes, undefined, 'what only a file has is no flag');
  });

  it('show no credentials', () => {
    for (const credentials of ['me:secret', 'me:se/cr@et', 'token']) {
      const { master } = flagValues({ master: `https://${credentials}@api.example:6443/a` });
      assert.equal(master, 'https://CLASSIFIED@api.example:6443/a');
    }
  });
});
