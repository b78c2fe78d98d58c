import assert from 'node:assert/strict';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { encode, type Answer as PacketRecord } from 'dns-packet';
import fc from 'fast-check';
import { ForwardCache, type ForwardCacheOptions } from '../../dns/forward-cache.ts';
import { type DnsQuery, HEADER_LENGTH, readQuery } from '../../dns/query.ts';
import { waitFor } from '../lab/wait.ts';
import { type QueryFields, queryBytes, readReply } from './messages.ts';

const WWW = 'www.example.com';
const soa = (ttl: number, minimum: number): PacketRecord => ({
  name: 'example.com',
  type: 'SOA',
  ttl,
  data: {
    mname: 'ns.example.com',
    rname: 'root.example.com',
    serial: 1,
    refresh: 2,
    retry: 3,
    expire: 4,
    minimum,
  },
});
const address = (data: string, ttl = 60, name = WWW): PacketRecord => ({
  name,
  type: 'A',
  ttl,
  data,
});

interface ResponseFields {
  readonly flags?: number;
  readonly answers?: readonly PacketRecord[];
  readonly authorities?: readonly PacketRecord[];
  readonly additionals?: readonly PacketRecord[];
}

function response(
  query: Buffer,
  { flags = 0x8180, answers = [], authorities = [], additionals = [] }: ResponseFields,
) {
  const records = encode({
    answers: [...answers],
    authorities: [...authorities],
    additionals: [...additionals],
  });
  const question = query.subarray(HEADER_LENGTH, HEADER_LENGTH + readGood(query).question.length);
  const bytes = Buffer.concat([
    records.subarray(0, HEADER_LENGTH),
    question,
    records.subarray(HEADER_LENGTH),
  ]);
  bytes.writeUInt16BE(4711, 0);
  bytes.writeUInt16BE(flags, 2);
  bytes.writeUInt16BE(1, 4);
  return bytes;
}

const OPT: PacketRecord = {
  name: '.',
  type: 'OPT',
  udpPayloadSize: 4096,
  extendedRcode: 0,
  ednsVersion: 0,
  flags: 0,
  flag_do: false,
  options: [],
};

function readGood(bytes: Buffer): DnsQuery {
  const query = readQuery(bytes);
  assert.ok(query !== undefined && 'name' in query);
  return query;
}

function cache(options: Partial<ForwardCacheOptions> = {}) {
  const clock = { now: 1000.5 };
  const made = new ForwardCache({ maxTtl: 300, now: () => clock.now, random: () => 0, ...options });
  const get = (bytes: Buffer) => {
    const cached = made.get(readGood(bytes), bytes);
    return cached && readReply(cached);
  };
  const set = (bytes: Buffer, fields: ResponseFields) =>
    made.set(readGood(bytes), bytes, response(bytes, fields));
  return { made, clock, get, set };
}

const ask = (fields: QueryFields = {}, name = WWW, type = 'A') => queryBytes(name, type, fields);

describe('forward-cache: ForwardCache', () => {
  it('returns a response until its shortest TTL expires, with the remaining TTLs', () => {
    const { clock, get, set } = cache();
    const query = ask();
    assert.equal(get(query), undefined);
    set(query, { flags: 0x8580, answers: [address('192.0.2.1', 60)], authorities: [soa(90, 1)] });
    clock.now += 20.6;
    const cached = get(query);
    assert.deepEqual(cached?.answers, [`${WWW} 40 A 192.0.2.1`]);
    assert.match(cached?.authorities[0] ?? '', /^example.com 70 SOA /);
    // The AA bit is cleared.
    assert.deepEqual([cached?.id, cached?.flags], [0, 'qr rd ra']);
    clock.now += 39.3;
    assert.deepEqual(get(query)?.answers, [`${WWW} 1 A 192.0.2.1`]);
    clock.now += 0.1;
    assert.equal(get(query), undefined);
  });

  it('caps TTLs, and stores nothing if the cap is 0', () => {
    const { clock, get, set } = cache({ maxTtl: 30 });
    set(ask(), { answers: [address('192.0.2.1', 3600)] });
    clock.now += 29;
    assert.deepEqual(get(ask())?.answers, [`${WWW} 3571 A 192.0.2.1`]);
    clock.now += 1;
    assert.equal(get(ask()), undefined);
    const none = cache({ maxTtl: 0 });
    none.set(ask(), { answers: [address('192.0.2.1')] });
    assert.equal(none.get(ask()), undefined);
  });

  for (const [what, flags] of [
    ['NXDOMAIN', 0x8183],
    ['NODATA', 0x8180],
  ] as const) {
    it(`caches ${what} for the negative TTL of the SOA record`, () => {
      for (const [ttl, minimum] of [
        [3600, 30],
        [30, 3600],
      ] as const) {
        const { clock, get, set, made } = cache();
        set(ask(), { flags, authorities: [soa(ttl, minimum)] });
        assert.equal(made.stats.entries.denial, 1);
        clock.now += 10;
        assert.match(get(ask())?.authorities[0] ?? '', /^example.com 20 SOA /);
        clock.now += 20;
        assert.equal(get(ask()), undefined);
      }
    });
  }

  it('caches an alias to a nonexistent name as a negative answer', () => {
    const { get, set, made } = cache();
    const alias: PacketRecord = { name: WWW, type: 'CNAME', ttl: 60, data: 'gone.example.com' };
    set(ask(), { answers: [alias] });
    assert.equal(get(ask()), undefined);
    set(ask(), { answers: [alias], authorities: [soa(60, 60)] });
    assert.equal(get(ask())?.answers.length, 1);
    assert.equal(made.stats.entries.denial, 1);
  });

  for (const [what, fields] of [
    ['a failure', { flags: 0x8182 }],
    ['a refusal', { flags: 0x8185 }],
    ['a truncated response', { flags: 0x8380, answers: [address('192.0.2.1')] }],
    ['a TTL of 0', { answers: [address('192.0.2.1', 0)] }],
    ['a negative TTL', { answers: [address('192.0.2.1', 0x8000_0001)] }],
    ['a negative answer without an SOA record', { flags: 0x8183 }],
    [
      'records behind the OPT record',
      { answers: [address('192.0.2.1')], additionals: [OPT, address('192.0.2.2')] },
    ],
    [
      'an extended RCODE',
      { answers: [address('192.0.2.1')], additionals: [{ ...OPT, extendedRcode: 1 }] },
    ],
  ] as const) {
    it(`does not cache ${what}`, () => {
      const { get, set } = cache();
      set(ask(), fields as ResponseFields);
      assert.equal(get(ask()), undefined);
    });
  }

  it('returns a response only for the same question and flags', () => {
    const { get, set } = cache();
    set(ask({ size: 1232 }), { answers: [address('192.0.2.1')], additionals: [OPT] });
    assert.equal(get(ask({ size: 512 }))?.answers.length, 1);
    for (const other of [
      ask(),
      ask({ size: 1232, dnssecOk: true }),
      ask({ size: 1232 }, 'ww.example.com'),
      ask({ size: 1232 }, WWW, 'AAAA'),
      ask({ size: 1232, recursionDesired: false }),
    ]) {
      assert.equal(get(other), undefined);
    }
    const checkingDisabled = ask({ size: 1232 });
    checkingDisabled.writeUInt16BE(0x110, 2);
    assert.equal(get(checkingDisabled), undefined);
    const everything = ask({ size: 1232 }, WWW, 'ANY');
    set(everything, { answers: [address('192.0.2.1')] });
    assert.equal(get(everything), undefined);
  });

  it('does not cache queries with EDNS Client Subnet', () => {
    const { get, set } = cache();
    const plain = ask({ size: 1232 });
    const query = Buffer.concat([plain, Buffer.from([0, 8, 0, 4, 0, 1, 0, 0])]);
    query.writeUInt16BE(8, plain.length - 2);
    set(query, { answers: [address('192.0.2.1')] });
    assert.equal(get(query), undefined);
    assert.equal(get(plain), undefined);
  });

  it('repeats the letter case of the question and adds its own OPT record', () => {
    const { get, set } = cache();
    set(ask({ size: 4096, dnssecOk: true }), {
      answers: [address('192.0.2.1')],
      additionals: [OPT],
    });
    const cached = get(ask({ size: 512, dnssecOk: true }, WWW.toUpperCase()));
    assert.equal(cached?.question, 'WWW.EXAMPLE.COM A');
    assert.deepEqual(cached?.opt, { size: 1232, dnssecOk: true });
    assert.deepEqual(cached?.additionals, []);
  });

  it('rotates the addresses so that each comes first at some time', () => {
    let random = 0;
    const { get, set } = cache({ random: () => random });
    const alias: PacketRecord = { name: WWW, type: 'CNAME', ttl: 60, data: 'a.example.com' };
    const addresses = ['192.0.2.1', '192.0.2.2', '192.0.2.3'];
    set(ask(), {
      answers: [alias, ...addresses.map((each) => address(each, 60, 'a.example.com'))],
    });
    const firsts = [0, 0.34, 0.67].map((value) => {
      random = value;
      const [first, ...others] = get(ask())?.answers ?? [];
      assert.match(first ?? '', / CNAME /);
      const data = others.map((text) => text.split(' ')[3]);
      assert.deepEqual(data.toSorted(), addresses);
      return data[0];
    });
    assert.deepEqual(firsts, addresses);
  });

  it('evicts least recently used entries at the limits of count and bytes', () => {
    const names = ['a', 'b', 'c', 'd'].map((label) => `${label}.example.com`);
    const found = ({ get }: ReturnType<typeof cache>) =>
      names.filter((name) => get(ask({}, name)) !== undefined);
    const few = cache({ maxEntries: 3 });
    const small = cache({
      maxBytes:
        3 * response(ask({}, names[0]), { answers: [address('192.0.2.1', 60, names[0])] }).length,
    });
    for (const each of [few, small]) {
      for (const name of names.slice(0, 3))
        each.set(ask({}, name), { answers: [address('192.0.2.1', 60, name)] });
      each.get(ask({}, names[0]));
      each.set(ask({}, names[3]), { answers: [address('192.0.2.1', 60, names[3])] });
      assert.deepEqual(found(each), [names[0], names[2], names[3]]);
      assert.equal(each.made.stats.evictions.success, 1);
    }
  });

  it('uses memory for its responses only, not for buffers read or written between them', async () => {
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    const { set, made } = cache();
    const used = () => {
      collect();
      return process.memoryUsage().arrayBuffers;
    };
    const before = used();
    for (let index = 0; index < 200; index++) {
      const name = `${index}.example.com`;
      set(ask({}, name), { answers: [address('192.0.2.1', 60, name)] });
      for (let other = 0; other < 100; other++) Buffer.allocUnsafe(1000);
    }
    assert.equal(made.stats.entries.success, 200);
    // V8 frees the memory in the background.
    await waitFor('200 responses take less than a megabyte', () => used() - before < 1 << 20);
  });

  it('counts hits, misses, entries and evictions', () => {
    const { get, set, made } = cache();
    get(ask());
    set(ask(), { answers: [address('192.0.2.1')] });
    set(ask(), { answers: [address('192.0.2.2')] });
    get(ask());
    const { hits, misses, entries } = made.stats;
    assert.deepEqual(
      [hits, misses, entries],
      [{ success: 1, denial: 0 }, 1, { success: 1, denial: 0 }],
    );
  });

  it('accepts arbitrary bytes as responses', () => {
    const query = ask();
    fc.assert(
      fc.property(
        fc.uint8Array({ maxLength: 120 }),
        fc.array(fc.nat(3), { minLength: 3, maxLength: 3 }),
        (rest, counts) => {
          const { made } = cache();
          const bytes = Buffer.concat([query, rest]);
          bytes.writeUInt16BE(0x8180, 2);
          for (const [index, count] of counts.entries()) bytes.writeUInt16BE(count, 6 + 2 * index);
          made.set(readGood(query), query, bytes);
          const cached = made.get(readGood(query), query);
          assert.ok(cached === undefined || cached.length <= bytes.length);
        },
      ),
      { seed: 3, numRuns: 2000 },
    );
  });
});
