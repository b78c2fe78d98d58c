import assert from 'node:assert/strict';
import { AnswerCache } from '../../dns/answer-cache.ts';
import { type DnsQuery, readQuery } from '../../dns/query.ts';
import type { DnsRecord } from '../../dns/records.ts';
import { encodeAnswer } from '../../dns/response.ts';
import { a, queryBytes } from './messages.ts';

function query(name: string, type = 'A'): DnsQuery {
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

/** A zone whose records can be changed. */
function changing() {
  const records = new Map<string, readonly DnsRecord[]>([
    ['a', [a('a', '10.0.0.1')]],
    ['b', [a('b', '10.0.0.2')]],
  ]);
  return {
    records,
    serial: 1,
    lookup: (name: string) => records.get(name),
    set(name: string, list: readonly DnsRecord[] | undefined) {
      this.serial += 1;
      if (list === undefined) records.delete(name);
      else records.set(name, list);
    },
  };
}

describe('answer-cache: AnswerCache', () => {
  it('returns stored answers by name and type', () => {
    const cache = new AnswerCache();
    const zone = changing();
    assert.equal(cache.get(query('a'), zone), undefined);
    cache.set(query('a'), answer, new Map(), 1);
    assert.deepEqual(cache.get(query('A'), zone), answer);
    assert.equal(cache.get(query('a', 'AAAA'), zone), undefined);
    assert.equal(cache.get(query('b'), zone), undefined);
  });

  it('copies the bytes it stores, so that the buffer pool block they were cut from can be freed', () => {
    const cache = new AnswerCache();
    const encoded = encodeAnswer(query('a').question, {
      rcode: 'NOERROR',
      authoritative: true,
      ...NOTHING,
      answers: [{ name: 'a', type: 'A', ttl: 5, data: '10.0.0.1' }],
    });
    cache.set(query('a'), encoded, new Map(), 1);
    const bytes = cache.get(query('a'), changing())?.bytes;
    assert.deepEqual(bytes, encoded.bytes);
    assert.equal(bytes?.buffer.byteLength, encoded.bytes.length);
  });

  it('keeps an answer while its own records are unchanged, whatever happens to other names', () => {
    const names = ['a', 'b', 'gone'];
    for (const [changed, list] of [
      ['a', [a('a', '10.0.0.9')]],
      ['a', [...(changing().lookup('a') ?? []), a('a', '10.0.0.9')]],
      ['b', undefined],
      ['gone', []],
    ] as const) {
      const cache = new AnswerCache();
      const zone = changing();
      const lookups = new Map(names.map((name) => [name, zone.lookup(name)]));
      cache.set(query('a'), answer, lookups, zone.serial);
      zone.set('other', [a('other', '10.0.0.3')]);
      zone.set('other', undefined);
      assert.deepEqual(cache.get(query('a'), zone), answer);
      // New record objects with the same content.
      zone.set('a', [a('a', '10.0.0.1')]);
      assert.deepEqual(cache.get(query('a'), zone), answer);
      zone.set(changed, list);
      assert.equal(cache.get(query('a'), zone), undefined, changed);
      assert.equal(cache.size, 0);
    }
  });

  it('evicts the oldest answer at the limit', () => {
    const cache = new AnswerCache(3);
    const zone = changing();
    const names = ['a', 'b', 'c', 'd', 'e'];
    for (const name of names) cache.set(query(name), answer, new Map(), 1);
    assert.equal(cache.size, 3);
    const found = names.filter((name) => cache.get(query(name), zone) !== undefined);
    assert.deepEqual(found, ['c', 'd', 'e']);
  });

  it('does not store answers from names with many records, which it would compare', () => {
    const cache = new AnswerCache();
    const many = Array.from({ length: 1001 }, (_, index) => a('b', `10.0.${index >> 8}.${index}`));
    const lookups = (length: number) => new Map([['b', many.slice(0, length)]]);
    cache.set(query('a'), answer, lookups(1001), 1);
    assert.equal(cache.size, 0);
    cache.set(query('a'), answer, lookups(1000), 1);
    assert.equal(cache.size, 1);
  });

  it('does not store answers that are too long for one UDP message', () => {
    const cache = new AnswerCache();
    cache.set(query('a'), { ...answer, bytes: Buffer.alloc(1233) }, new Map(), 1);
    assert.equal(cache.size, 0);
  });
});
