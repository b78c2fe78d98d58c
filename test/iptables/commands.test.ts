import assert from 'node:assert/strict';
import { placeOf } from '../../iptables/commands.ts';

describe('the line of an input that a command names by its number', () => {
  const INPUT = '*nat\n-C OUTPUT -j A\nCOMMIT\n*filter\n-C INPUT -j B\nCOMMIT\n';

  for (const [number, expected] of [
    [2, { line: '-C OUTPUT -j A', table: 'nat' }],
    [4, { line: '*filter', table: 'filter' }],
    [5, { line: '-C INPUT -j B', table: 'filter' }],
    [7, undefined],
  ] as const) {
    it(`${number}, wherever the pieces are cut`, () => {
      for (let cut = 0; cut <= INPUT.length; cut++) {
        const pieces = [INPUT.slice(0, cut), INPUT.slice(cut)];
        assert.deepEqual(placeOf(pieces, number), expected);
      }
    });
  }
});
