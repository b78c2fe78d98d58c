import assert from 'node:assert/strict';
import fc from 'fast-check';
import {
  ELEMENT_COMMENT_LIMIT,
  encodeComment,
  readComment,
} from '../../../netlink/nftables/comment.ts';

describe('comments of nf_tables', () => {
  it('are as nft writes them', () => {
    assert.equal(encodeComment('hi').toString('hex'), `0003${Buffer.from('hi\0').toString('hex')}`);
  });

  it('are cut behind a whole character', () => {
    const text = `${'a'.repeat(126)}é`;
    assert.equal(readComment(encodeComment(text)), 'a'.repeat(126));
    assert.equal(readComment(encodeComment(`${'a'.repeat(125)}é`)), `${'a'.repeat(125)}é`);
    assert.equal(readComment(encodeComment('€'.repeat(60), 8)), '€€');
  });

  it('are read as they were written, and never longer than they may be', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme', maxLength: 300 }), (text) => {
        const data = encodeComment(text, ELEMENT_COMMENT_LIMIT);
        assert.ok(data.length <= 254);
        const read = readComment(data) ?? '';
        const [whole] = text.split('\0');
        assert.ok(whole?.startsWith(read), read);
        if (Buffer.byteLength(text) < ELEMENT_COMMENT_LIMIT) assert.equal(read, whole);
      }),
      { seed: 3, numRuns: 300 },
    );
  });

  it('are found beside what else is noted', () => {
    const other = Buffer.from([7, 2, 1, 2]);
    assert.equal(readComment(Buffer.concat([other, encodeComment('x')])), 'x');
    assert.equal(readComment(other), undefined);
    assert.equal(readComment(Buffer.from([7])), undefined);
    assert.equal(readComment(Buffer.from([0, 200, 65])), 'A');
  });
});
