import assert from 'node:assert/strict';
import packet, { type Answer, type Packet } from 'dns-packet';
import fc from 'fast-check';
import {
  type DnsMessage,
  readDnsMessage,
  TYPE_A,
  TYPE_AAAA,
} from '../../../policy/fqdn/dns-message.ts';
import { checkProperty } from '../../netlink/property.ts';

const NAME = 'www.example.com';

function response(answers: readonly Answer[], fields: Partial<Packet> = {}): Buffer {
  return packet.encode({
    type: 'response',
    id: 7,
    questions: [{ type: 'A', name: NAME }],
    answers: [...answers],
    ...fields,
  });
}

function a(data: string, name = NAME, ttl = 60): Answer {
  return { type: 'A', name, ttl, data };
}

function cname(name: string, data: string, ttl = 60): Answer {
  return { type: 'CNAME', name, ttl, data };
}

function addresses(bytes: Buffer): Record<string, number> | undefined {
  const message = readDnsMessage(bytes);
  if (message?.kind !== 'answer') return undefined;
  return Object.fromEntries(message.addresses().map(({ address, ttl }) => [address, ttl]));
}

/** A query for a name given by its labels. */
function query(...labels: readonly (string | readonly number[])[]): Buffer {
  const header = Buffer.alloc(12);
  header.writeUInt16BE(1, 4);
  const name = labels.map((label) => Buffer.from(label as string));
  return Buffer.concat([
    header,
    ...name.map((label) => Buffer.concat([Buffer.from([label.length]), label])),
    Buffer.from([0, 0, 1, 0, 1]),
  ]);
}

function nameOf(message: DnsMessage | undefined): string | undefined {
  return message?.question.name;
}

describe('dns-message: DNS messages', () => {
  describe('question', () => {
    it('is read from a query', () => {
      const bytes = packet.encode({
        type: 'query',
        id: 0xabcd,
        flags: packet.RECURSION_DESIRED,
        questions: [{ type: 'AAAA', name: 'WWW.Example.com' }],
        additionals: [{ type: 'OPT', name: '.', udpPayloadSize: 4096, options: [] } as never],
      });
      assert.deepEqual(readDnsMessage(bytes), {
        kind: 'query',
        question: { id: 0xabcd, name: NAME, type: TYPE_AAAA },
      });
    });

    it('is read from an answer', () => {
      const message = readDnsMessage(response([]));
      assert.equal(message?.kind, 'answer');
      assert.deepEqual(message?.question, { id: 7, name: NAME, type: TYPE_A });
    });

    it('is rejected unless it is one question of class IN and opcode QUERY', () => {
      const question = { type: 'A', name: NAME } as const;
      assert.equal(readDnsMessage(response([], { questions: [question, question] })), undefined);
      assert.equal(readDnsMessage(response([], { questions: [] })), undefined);
      const chaos = response([], { questions: [{ ...question, class: 'CH' }] });
      assert.equal(readDnsMessage(chaos), undefined);
      const update = packet.encode({ type: 'query', flags: 5 << 11, questions: [question] });
      assert.equal(readDnsMessage(update), undefined);
    });
  });

  describe('names', () => {
    it('have one text form each, and no two names share one', () => {
      const all = [
        query('www', 'example', 'com'),
        query('www.example', 'com'),
        query('www', 'example.com'),
        query('\u212aww', 'example', 'com'),
        query([0xff], 'com'),
        query([0xfe], 'com'),
        query('a b', 'com'),
        query('a\\032b', 'com'),
        query('*', 'com'),
        query(''),
      ].map((bytes) => nameOf(readDnsMessage(bytes)));
      assert.equal(new Set(all).size, all.length);
      assert.deepEqual(all.slice(0, 5), [
        NAME,
        'www\\046example.com',
        'www.example\\046com',
        '\\226\\132\\170ww.example.com',
        '\\255.com',
      ]);
      assert.equal(nameOf(readDnsMessage(query('WwW', 'eXample', 'COM'))), NAME);
    });

    it('have at most 255 bytes, in labels of at most 63', () => {
      const label = 'a'.repeat(63);
      const longest = [label, label, label, 'a'.repeat(61)];
      assert.equal(nameOf(readDnsMessage(query(...longest))), longest.join('.'));
      assert.equal(readDnsMessage(query(...longest.slice(0, 3), 'a'.repeat(62))), undefined);
      assert.equal(readDnsMessage(query('a'.repeat(64))), undefined);
    });

    it('with pointer loops or forward pointers are rejected', () => {
      const message = response([a('192.0.2.1')]);
      // The name of the record, which dns-packet writes without compression.
      const at = 12 + NAME.length + 2 + 4;
      for (const target of [at, at + 1, at + 12, 0x3fff]) {
        const bytes = Buffer.from(message);
        bytes.writeUInt16BE(0xc000 | target, at);
        assert.deepEqual(addresses(bytes), {}, String(target));
      }
      // A forward pointer.
      const forwards = Buffer.concat([Buffer.alloc(12), Buffer.from('c01200010001016100', 'hex')]);
      forwards.writeUInt16BE(1, 4);
      assert.equal(readDnsMessage(forwards), undefined);
      // A pointer back, and from there forward into the data of a TXT record.
      const head = response([{ type: 'TXT', name: NAME, ttl: 60, data: 'text' }]);
      const text = head.length - 4;
      head.set([0xc0, text + 2], text);
      head.set([0xc0, 12], text + 2);
      const record = [0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1];
      const hopping = (to: number) => Buffer.concat([head, Buffer.from([0xc0, to, ...record])]);
      for (const [to, expected] of [
        [text + 2, { '192.0.2.1': 60 }],
        [text, {}],
      ] as const) {
        const bytes = hopping(to);
        bytes.writeUInt16BE(2, 6);
        assert.deepEqual(addresses(bytes), expected);
      }
      // Two pointers to each other.
      const header = Buffer.alloc(12);
      header.writeUInt16BE(1, 4);
      const circle = Buffer.concat([header, Buffer.from('c00ec00c00010001', 'hex')]);
      assert.equal(readDnsMessage(circle), undefined);
    });
  });

  describe('addresses', () => {
    it('are read for the queried type, with TTLs', () => {
      const both: Answer[] = [
        a('192.0.2.1'),
        a('192.0.2.2', NAME, 0),
        { type: 'AAAA', name: NAME, ttl: 60, data: '2001:db8::1' },
        { type: 'TXT', name: NAME, ttl: 60, data: 'text' },
      ];
      assert.deepEqual(addresses(response(both)), { '192.0.2.1': 60, '192.0.2.2': 0 });
      const questions = [{ type: 'AAAA', name: NAME } as const];
      assert.deepEqual(addresses(response(both, { questions })), { '2001:db8::1': 60 });
      const texts = [{ type: 'TXT', name: NAME } as const];
      assert.deepEqual(addresses(response(both, { questions: texts })), {});
    });

    it('are found when the case of the name differs', () => {
      assert.deepEqual(addresses(response([a('192.0.2.1', 'wWw.eXAMPLE.com')])), {
        '192.0.2.1': 60,
      });
    });

    it('are found at the end of a CNAME chain in any order, with the smallest TTL', () => {
      const chain = [
        a('192.0.2.1', 'c.example.net', 90),
        cname('b.example.net', 'c.example.net', 30),
        cname(NAME, 'b.example.net', 40),
        a('192.0.2.2', 'c.example.net', 20),
      ];
      assert.deepEqual(addresses(response(chain)), { '192.0.2.1': 30, '192.0.2.2': 20 });
      assert.deepEqual(addresses(response(chain.toReversed())), {
        '192.0.2.1': 30,
        '192.0.2.2': 20,
      });
    });

    it('follow the first of several CNAMEs of a name', () => {
      const aliases = [cname(NAME, 'b.net'), cname(NAME, 'c.net')];
      const ends = [a('192.0.2.1', 'b.net'), a('192.0.2.2', 'c.net')];
      assert.deepEqual(addresses(response([...aliases, ...ends])), { '192.0.2.1': 60 });
    });

    it('of other names in the answer are ignored', () => {
      assert.deepEqual(addresses(response([a('192.0.2.1', 'example.com')])), {});
      assert.deepEqual(
        addresses(response([cname(NAME, 'b.example.net'), a('192.0.2.1'), a('192.0.2.2', 'c')])),
        {},
      );
    });

    it('are empty when the CNAME chain is broken, circular or too long', () => {
      assert.deepEqual(addresses(response([cname(NAME, 'b.example.net')])), {});
      const circle = [cname(NAME, 'b.net'), cname('b.net', NAME)];
      const inside = [a('192.0.2.1', 'b.net'), a('192.0.2.2')];
      assert.deepEqual(addresses(response([...circle, ...inside])), {});
      const links = Array.from({ length: 40 }, (_, index) =>
        cname(index === 0 ? NAME : `n${index}`, `n${index + 1}`),
      );
      assert.deepEqual(addresses(response([...links, a('192.0.2.1', 'n40')])), {});
      assert.deepEqual(addresses(response([...links.slice(0, 20), a('192.0.2.1', 'n20')])), {
        '192.0.2.1': 60,
      });
    });

    it('in other sections, of other classes, or with an error code are ignored', () => {
      assert.deepEqual(addresses(response([], { additionals: [a('192.0.2.1')] })), {});
      assert.deepEqual(addresses(response([], { authorities: [a('192.0.2.1')] })), {});
      assert.deepEqual(addresses(response([{ ...a('192.0.2.1'), class: 'CH' } as Answer])), {});
      for (const rcode of [1, 2, 3, 5]) {
        assert.deepEqual(addresses(response([a('192.0.2.1')], { flags: rcode })), {});
      }
    });

    it('that are IPv4-mapped are ignored', () => {
      const answers: Answer[] = ['::ffff:192.0.2.1', '::fffe:192.0.2.1'].map((data) => {
        return { type: 'AAAA', name: NAME, ttl: 60, data };
      });
      const questions = [{ type: 'AAAA', name: NAME } as const];
      assert.deepEqual(addresses(response(answers, { questions })), { '::fffe:c000:201': 60 });
    });

    it('get a TTL of 0 when its most significant bit is set', () => {
      const bytes = response([a('192.0.2.1', NAME, 1)]);
      const at = bytes.length - 4 - 2 - 4;
      bytes.writeUInt32BE(0x80000001, at);
      assert.deepEqual(addresses(bytes), { '192.0.2.1': 0 });
      bytes.writeUInt32BE(0x7fffffff, at);
      assert.deepEqual(addresses(bytes), { '192.0.2.1': 0x7fffffff });
    });

    it('of complete records are read from a truncated answer', () => {
      const all = [a('192.0.2.1'), a('192.0.2.2'), a('192.0.2.3')];
      const flags = packet.TRUNCATED_RESPONSE;
      assert.deepEqual(addresses(response(all.slice(0, 2), { flags })), {
        '192.0.2.1': 60,
        '192.0.2.2': 60,
      });
      // Truncated after a record; the count includes the removed records.
      const whole = response(all, { flags });
      const record = (whole.length - response([], { flags }).length) / 3;
      const cut = whole.subarray(0, whole.length - record);
      assert.deepEqual(addresses(cut), { '192.0.2.1': 60, '192.0.2.2': 60 });
      // Malformed if truncated within a record, or without the TC flag.
      assert.deepEqual(addresses(whole.subarray(0, whole.length - 1)), {});
      const claimed = Buffer.from(cut);
      claimed.writeUInt16BE(claimed.readUInt16BE(2) & ~flags, 2);
      assert.deepEqual(addresses(claimed), {});
    });

    it('are empty when a record is malformed', () => {
      const bytes = response([a('192.0.2.1'), a('192.0.2.2')]);
      const wrong = Buffer.from(bytes);
      wrong.writeUInt16BE(3, wrong.length - 6);
      assert.deepEqual(addresses(wrong), {});
      wrong.writeUInt16BE(5, wrong.length - 6);
      assert.deepEqual(addresses(wrong), {});
      const alias = response([cname(NAME, 'b.example.net'), a('192.0.2.1', 'b.example.net')]);
      const end = alias.indexOf(Buffer.from('\x01b\x07example\x03net\x00', 'latin1'));
      const broken = Buffer.from(alias);
      broken.writeUInt8(63, end);
      assert.deepEqual(addresses(broken), {});
      // A CNAME target that ends before its record.
      const short = response([cname(NAME, 'b.example.net'), a('192.0.2.1', 'b')]);
      short.writeUInt8(0, end + 2);
      assert.deepEqual(addresses(short), {});
    });

    it('are read from an answer with 4,000 addresses', () => {
      // With compression, as servers write it.
      const head = response([]);
      const records = Array.from({ length: 4000 }, (_, index) => {
        const address = [198, 18, index >> 8, index & 255];
        return Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, ...address]);
      });
      const bytes = Buffer.concat([head, ...records]);
      bytes.writeUInt16BE(records.length, 6);
      assert.equal(Object.keys(addresses(bytes) ?? {}).length, 4000);
    });
  });

  it('are rejected when their names have too many labels', () => {
    // Each record has a different name of a hundred labels.
    const labels = Buffer.concat([
      ...Array.from({ length: 110 }, () => Buffer.from('\x01a', 'latin1')),
      Buffer.from([0]),
    ]);
    const name = (index: number) =>
      Buffer.concat([Buffer.from([2, index >> 8, index & 255, 0xc0, 14])]);
    const records = (count: number) =>
      Array.from({ length: count }, (_, index) =>
        Buffer.concat([name(index), Buffer.from([0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 1, 2, 3, 4])]),
      );
    const message = (count: number) => {
      const header = Buffer.alloc(12);
      header.writeUInt16BE(0x8000, 2);
      header.writeUInt16BE(1, 4);
      header.writeUInt16BE(count + 1, 6);
      const own = Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 1, 2, 3, 4]);
      return Buffer.concat([header, labels, Buffer.from([0, 1, 0, 1]), ...records(count), own]);
    };
    assert.deepEqual(addresses(message(100)), { '1.2.3.4': 60 });
    assert.deepEqual(addresses(message(300)), {});
  });

  it('are read as dns-packet writes them', () => {
    const label = fc.stringMatching(/^[a-z0-9]([a-z0-9_-]{0,10}[a-z0-9])?$/);
    const name = fc.array(label, { minLength: 1, maxLength: 5 }).map((all) => all.join('.'));
    const ttl = fc.integer({ min: 0, max: 100_000 });
    const address = fc.ipV4();
    checkProperty(
      fc.property(
        fc.array(name, { minLength: 1, maxLength: 4 }),
        fc.array(fc.tuple(address, ttl), { maxLength: 5 }),
        fc.array(ttl, { minLength: 4, maxLength: 4 }),
        fc.integer({ min: 0, max: 0xffff }),
        (names, found, ttls, id) => {
          const chain = [...new Set(names)];
          const [first = '', last = ''] = [chain[0], chain.at(-1)];
          const answers = [
            ...chain.slice(1).map((to, index) => cname(chain[index] ?? '', to, ttls[index])),
            ...found.map(([data, own]) => a(data, last, own)),
          ];
          const bytes = response(answers, { id, questions: [{ type: 'A', name: first }] });
          const message = readDnsMessage(bytes);
          assert.deepEqual(message?.question, { id, name: first, type: TYPE_A });
          const least = Math.min(...ttls.slice(0, chain.length - 1), Infinity);
          assert.deepEqual(
            message?.kind === 'answer' && message.addresses(),
            found.map(([text, own]) => ({ address: text, ttl: Math.min(own, least) })),
          );
        },
      ),
    );
  });

  it('never throw for random bytes', () => {
    const seed = response([cname(NAME, 'b.example.net'), a('192.0.2.1', 'b.example.net')]);
    const change = fc.tuple(fc.nat({ max: seed.length - 1 }), fc.nat({ max: 255 }));
    const look = (bytes: Buffer) => {
      const message = readDnsMessage(bytes);
      if (message?.kind === 'answer') message.addresses();
    };
    checkProperty(
      fc.property(
        fc.array(change, { maxLength: 6 }),
        fc.nat({ max: seed.length }),
        fc.uint8Array({ maxLength: 100 }),
        (changes, length, bytes) => {
          const changed = Buffer.from(seed);
          for (const [at, byte] of changes) changed[at] = byte;
          look(changed);
          look(changed.subarray(0, length));
          look(Buffer.from(bytes));
        },
      ),
    );
  });
});
