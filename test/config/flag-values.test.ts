import assert from 'node:assert/strict';
import { flagValues } from '../../config/flag-values.ts';

describe('flag-values: the values on /flagz', () => {
  it('returns given values and defaults, without fields that have no flag', () => {
    const flags = flagValues({ v: '3', proxyMode: 'ipvs' });
    assert.deepEqual(
      [flags.v, flags['proxy-mode'], flags['oom-score-adj'], flags.cleanup, flags.config],
      ['3', 'ipvs', '-999', 'false', ''],
    );
    assert.equal(flags.acceptContentTypes, undefined, 'a field without a flag');
  });

  it('hides credentials in URLs', () => {
    for (const credentials of ['me:secret', 'me:se/cr@et', 'token']) {
      const { master } = flagValues({ master: `https://${credentials}@api.example:6443/a` });
      assert.equal(master, 'https://CLASSIFIED@api.example:6443/a');
    }
  });
});
