import assert from 'node:assert/strict';
import fc from 'fast-check';
import {
  ELEMENT_COMMENT_LIMIT,
  encodeComment,
  readComment,
} from '../../../netlink/nftables/comment.ts';

describe('comment: comments of nf_tables', () => {
  it('encodes a comment like nft', () => {
    assert.equal(encodeComment('hi').toString('hex'), `0003${Buffer.from('hi\0').toString('hex')}`);
  });

  it('cuts a long comment after a complete character', () => {
    const text = `${'a'.repeat(126)}é`;
    assert.equal(readComment(encodeComment(text)), 'a'.repeat(126));
    assert.equal(readComment(encodeComment(`${'a'.repeat(125)}é`)), `${'a'.repeat(125)}é`);
    assert.equal(readComment(encodeComment('€'.repeat(60), 8)), '€€');
  });

  it('decodes encoded values unchanged, within the length limit', () => {
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

  it('finds the comment among other user data', () => {
    const other = Buffer.from([7, 2, 1, 2]);
    assert.equal(readComment(Buffer.concat([other, encodeComment('x')])), 'x');
    assert.equal(readComment(other), undefined);
    assert.equal(readComment(Buffer.from([7])), undefined);
    assert.equal(readComment(Buffer.from([0, 200, 65])), 'A');
  });
});
