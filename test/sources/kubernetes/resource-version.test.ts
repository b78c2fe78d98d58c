import assert from 'node:assert/strict';
import { isOlder } from '../../../sources/kubernetes/metadata.ts';

describe('resource versions', () => {
  for (const [version, other, expected] of [
    ['9', '10', true],
    ['10', '9', false],
    ['10', '10', false],
    ['99999999999999999998', '99999999999999999999', true],
    ['', '10', false],
    ['9', '', false],
    ['abc', '10', false],
    ['9', '1x', false],
    ['09', '10', false],
  ] as const) {
    it(`${version || 'none'} is ${expected ? '' : 'not '}older than ${other || 'none'}`, () =>
      assert.equal(isOlder(version, other), expected));
  }
});
