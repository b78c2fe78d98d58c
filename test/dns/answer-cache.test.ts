import assert from 'node:assert/strict';
import { AnswerCache } from '../../dns/answer-cache.ts';
import { type Query, readQuery } from '../../dns/query.ts';
import { encodeAnswer } from '../../dns/response.ts';
import { queryBytes } from './messages.ts';

function query(name: string, type = 'A'): Query {
  const read = readQuery(queryBytes(name, type));
  assert.ok(read !== undefined && 'name' in read);
  return read;
}

const NOTHING = { answers: [], authorities: [], additionals: [] };
const answer = encodeAnswer(query('a').question, {
  rcode: 'NOERROR',
  authoritative: true,
  ...NOTHING,
});

describe('the cache of answers', () => {
  it('has what was put there, by name and type', () => {
    const cache = new AnswerCache();
    assert.equal(cache.get(query('a'), 1), undefined);
    cache.set(query('a'), answer);
    assert.equal(cache.get(query('A'), 1), answer);
    assert.equal(cache.get(query('a', 'AAAA'), 1), undefined);
    assert.equal(cache.get(query('b'), 1), undefined);
  });

  it('has nothing once the records are others', () => {
    const cache = new AnswerCache();
    cache.get(query('a'), 1);
    cache.set(query('a'), answer);
    assert.equal(cache.get(query('b'), 2), undefined);
    assert.equal(cache.get(query('a'), 2), undefined);
    assert.equal(cache.size, 0);
  });

  it('holds no more than it may, the latest', () => {
    const cache = new AnswerCache(3);
    cache.get(query('a'), 1);
    for (const name of ['a', 'b', 'c', 'd', 'e']) cache.set(query(name), answer);
    assert.equal(cache.size, 3);
    const found = ['a', 'b', 'c', 'd', 'e'].filter(
      (name) => cache.get(query(name), 1) !== undefined,
    );
    assert.deepEqual(found, ['c', 'd', 'e']);
  });

  it('does not hold long ones', () => {
    const cache = new AnswerCache();
    cache.get(query('a'), 1);
    cache.set(query('a'), { ...answer, bytes: Buffer.alloc(1233) });
    assert.equal(cache.size, 0);
  });
});
