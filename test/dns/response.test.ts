import assert from 'node:assert/strict';
import fc from 'fast-check';
import { type DnsQuery, readQuery } from '../../dns/query.ts';
import {
  type AnswerSections,
  encodeAnswer,
  encodeError,
  encodeResponse,
  isTruncated,
} from '../../dns/response.ts';
import type { ResourceRecord } from '../../dns/zone-answer.ts';
import { type QueryFields, queryBytes, readReply, recordLine } from './messages.ts';

const WEB = 'web.default.svc.cluster.local';
const NOTHING: AnswerSections = {
  rcode: 'NOERROR',
  authoritative: true,
  answers: [],
  authorities: [],
  additionals: [],
};
const OPTIONS = { recursionAvailable: false, limit: 65_535, random: () => 0 };

function query(name: string, fields: QueryFields = {}): DnsQuery {
  const read = readQuery(queryBytes(name, 'A', fields));
  assert.ok(read !== undefined && 'name' in read);
  return read;
}

function address(name: string, index: number): ResourceRecord {
  return { name, type: 'A', ttl: 5, data: `10.0.${index >> 8}.${index & 255}` };
}

function addresses(name: string, count: number): ResourceRecord[] {
  return Array.from({ length: count }, (_, index) => address(name, index));
}

function write(
  of: DnsQuery,
  sections: Partial<AnswerSections>,
  limit = 65_535,
  options: Partial<typeof OPTIONS> = {},
): Buffer {
  const encoded = encodeAnswer(of.question, { ...NOTHING, ...sections });
  return encodeResponse(of, encoded, { ...OPTIONS, limit, ...options });
}

describe('response: encodeResponse()', () => {
  it('repeats id and question, and sets the flags', () => {
    const reply = readReply(write(query('WeB.example', { id: 99 }), {}));
    assert.deepEqual(reply, {
      id: 99,
      opcode: 0,
      rcode: 0,
      flags: 'qr aa rd',
      question: 'WeB.example A',
      answers: [],
      authorities: [],
      additionals: [],
      opt: undefined,
    });
    const sections = { authoritative: false, rcode: 'NXDOMAIN' } as const;
    const plain = query('a', { recursionDesired: false });
    const other = write(plain, sections, 512, { recursionAvailable: true });
    assert.equal(readReply(other).flags, 'qr ra');
    assert.equal(readReply(other).rcode, 3);
  });

  it('adds an OPT record if the query has one, with its DO bit', () => {
    for (const dnssecOk of [false, true]) {
      const { opt } = readReply(write(query('a', { size: 4096, dnssecOk }), {}));
      assert.deepEqual(opt, { size: 1232, dnssecOk });
    }
    const bad = write(query('a', { size: 4096, version: 1 }), { rcode: 'BADVERS' });
    assert.equal(readReply(bad).rcode, 16);
  });

  it('compresses names to the question, in its letter case', () => {
    const queriedName = 'wEb.DEFAULT.svc.Cluster.Local';
    const soa: ResourceRecord = {
      name: 'cluster.local',
      type: 'SOA',
      ttl: 5,
      data: { mname: 'ns.dns.cluster.local', rname: 'hostmaster.cluster.local' },
    };
    const bytes = write(query(queriedName), {
      answers: [address(WEB, 1)],
      authorities: [soa],
      additionals: [address('pod.svc.cluster.local', 2), address('example.com', 3)],
    });
    const reply = readReply(bytes);
    assert.deepEqual(reply.answers, [`${queriedName} 5 A 10.0.0.1`]);
    assert.match(reply.authorities[0] ?? '', /^Cluster\.Local 5 SOA /);
    assert.deepEqual(reply.additionals, [
      'pod.svc.Cluster.Local 5 A 10.0.0.2',
      'example.com 5 A 10.0.0.3',
    ]);
    const [header, question] = [12, queriedName.length + 2 + 4];
    // The two bytes of the pointer to the question.
    assert.equal(bytes.readUInt16BE(header + question), 0xc00c);
    assert.equal(
      write(query(queriedName), { answers: [address(WEB, 1)] }).length,
      header + question + 16,
    );
  });

  it('compresses names to other records', () => {
    const target = 'db-0.db.default.svc.cluster.local';
    const pairs = [address(target, 1), address(target, 2), address(`x.${target}`, 3)];
    const bytes = write(query('example'), { additionals: pairs });
    assert.deepEqual(readReply(bytes).additionals, pairs.map(recordLine));
    const inFull = target.length + 2;
    assert.equal(bytes.length, 12 + 13 + (inFull + 14) + (2 + 14) + (2 + 2 + 14));
  });

  it('compresses a new name to a known suffix', () => {
    const pairs = [address(`x.y.${WEB}`, 1), address(`x.y.${WEB}`, 2), address(`y.${WEB}`, 3)];
    const bytes = write(query(WEB), { additionals: pairs });
    assert.deepEqual(readReply(bytes).additionals, pairs.map(recordLine));
    assert.equal(bytes.length, 12 + WEB.length + 6 + (4 + 2 + 14) + (2 + 14) + (2 + 14));
  });

  it('does not compress names to offsets beyond the range of a pointer', () => {
    const far = 'far.example';
    const many = [...addresses('near.example', 1100), ...addresses(far, 2)];
    const bytes = write(query('q'), { answers: many });
    assert.ok(bytes.length > 0x4000 + 100);
    assert.deepEqual(readReply(bytes).answers, many.map(recordLine));
  });

  it('truncates at a record boundary and sets TC', () => {
    for (const [fields, limit, count] of [
      [{}, 512, 29],
      [{ size: 512 }, 512, 28],
      [{ size: 1232 }, 1232, 73],
    ] as const) {
      const bytes = write(query(WEB, fields), { answers: addresses(WEB, 200) }, limit);
      const reply = readReply(bytes);
      assert.equal(reply.flags, 'qr aa tc rd');
      assert.deepEqual(reply.answers, addresses(WEB, count).map(recordLine));
      assert.equal(reply.opt === undefined, !('size' in fields));
      assert.ok(bytes.length <= limit && bytes.length + 16 > limit);
    }
    const whole = write(query(WEB), { answers: addresses(WEB, 29) }, 512);
    assert.equal(readReply(whole).flags, 'qr aa rd');
  });

  it('drops additional records without setting TC', () => {
    const pods = Array.from({ length: 20 }, (_, index) => address(`db-${index}.example`, index));
    const response = { answers: addresses(WEB, 20), additionals: pods };
    const reply = readReply(write(query(WEB), response, 512));
    assert.equal(reply.flags, 'qr aa rd');
    assert.equal(reply.answers.length, 20);
    assert.ok(reply.additionals.length > 0 && reply.additionals.length < 20);
  });

  it('includes an additional RRset completely or not at all', () => {
    const mixed = [
      ...addresses('db-0.example', 2),
      { name: 'db-0.example', type: 'AAAA', ttl: 5, data: 'fd00::1' } as const,
      ...addresses('db-1.example', 20),
      address('db-2.example', 1),
    ];
    const response = { answers: addresses(WEB, 15), additionals: mixed };
    for (const fields of [{}, { size: 512 }]) {
      const bytes = write(query(WEB, fields), response, 512);
      const reply = readReply(bytes);
      assert.deepEqual(reply.additionals, mixed.slice(0, 3).map(recordLine));
      assert.equal(reply.flags, 'qr aa rd');
      assert.equal(reply.opt === undefined, !('size' in fields));
    }
    const other = { name: 'db-0.example', type: 'AAAA', ttl: 5, data: 'fd00::1' } as const;
    const both = { answers: addresses(WEB, 26), additionals: [address(other.name, 1), other] };
    const reply = readReply(write(query(WEB), both, 512));
    assert.deepEqual(reply.additionals, both.additionals.slice(0, 1).map(recordLine));
    // Another section may have the same name and type.
    const twice = { authorities: addresses('x', 2), additionals: addresses('x', 40) };
    const sections = readReply(write(query(WEB), twice, 512));
    assert.deepEqual([sections.authorities.length, sections.additionals.length], [2, 0]);
  });

  describe('with several addresses', () => {
    const alias: ResourceRecord = { name: 'alias', type: 'CNAME', ttl: 5, data: WEB };
    const all = addresses(WEB, 3).map(recordLine);
    for (const [what, queriedName, before] of [
      ["of the question's name", WEB, []],
      ['of an alias target', 'alias', [alias]],
    ] as const) {
      it(`rotates addresses ${what} so that each comes first at some time`, () => {
        const sections = {
          answers: [...before, ...addresses(WEB, 3)],
          additionals: [address('x', 9)],
          addressCount: 3,
        };
        const orders = [0, 0.34, 0.67, 0.99].map((random) => {
          const bytes = write(query(queriedName), sections, 512, { random: () => random });
          const { answers, additionals } = readReply(bytes);
          assert.deepEqual(additionals, ['x 5 A 10.0.0.9']);
          assert.deepEqual(answers.slice(0, before.length), before.map(recordLine));
          return answers.slice(before.length);
        });
        assert.deepEqual(orders[0], all);
        for (const order of orders) assert.deepEqual(order.toSorted(), all);
        const firsts = orders.map(([first]) => all.indexOf(first ?? ''));
        assert.deepEqual(firsts, [0, 1, 2, 2]);
      });
    }

    it('returns a random part of the addresses when not all fit', () => {
      const sections = { answers: addresses(WEB, 100), addressCount: 100 };
      const { answers } = readReply(write(query(WEB), sections, 512, { random: () => 0.9 }));
      assert.equal(answers.length, 29);
      assert.equal(answers[0], `${WEB} 5 A 10.0.0.90`);
      assert.equal(answers[10], `${WEB} 5 A 10.0.0.0`);
    });

    it('keeps the order of records that are not rotatable', () => {
      const bytes = write(query(WEB), { answers: addresses(WEB, 3) }, 512, { random: () => 0.9 });
      assert.deepEqual(readReply(bytes).answers, all);
    });
  });

  it('reuses encoded records for the same question in another letter case', () => {
    const sections = { answers: addresses(WEB, 3), additionals: [address(`x.${WEB}`, 9)] };
    const encoded = encodeAnswer(query(WEB).question, { ...NOTHING, ...sections });
    for (const queriedName of [WEB, 'wEb.DEFAULT.svc.Cluster.Local']) {
      const of = query(queriedName, { size: 1000, id: 5 });
      assert.deepEqual(encodeResponse(of, encoded, OPTIONS), write(of, sections));
    }
  });

  it('encodes an error as a header alone', () => {
    const bad = { id: 7, opcode: 5, recursionDesired: true, rcode: 'NOTIMP' } as const;
    const reply = readReply(encodeError(bad));
    assert.deepEqual([reply.id, reply.opcode, reply.rcode, reply.flags], [7, 5, 4, 'qr rd']);
    assert.equal(encodeError(bad).length, 12);
  });

  it('encodes any records within the limit', () => {
    const label = fc.constantFrom('a', 'B', 'web', 'default', 'svc', 'x-1', 'l'.repeat(63));
    const name = fc.array(label, { minLength: 1, maxLength: 6 }).map((all) => all.join('.'));
    const short = name.filter((text) => text.length <= 253);
    const record = short.chain((owner): fc.Arbitrary<ResourceRecord> => {
      const ttl = 5;
      return fc.oneof(
        fc.nat(65_535).map((index) => address(owner, index)),
        short.map((data) => ({ name: owner, type: 'CNAME' as const, ttl, data })),
        short.map((target) => {
          const data = { priority: 0, weight: 100, port: 80, target };
          return { name: owner, type: 'SRV' as const, ttl, data };
        }),
        fc.string({ unit: 'binary-ascii', maxLength: 50 }).map((data) => {
          return { name: owner, type: 'TXT' as const, ttl, data };
        }),
      );
    });
    const records = fc.array(record, { maxLength: 12 });
    const fields = fc.constantFrom<QueryFields>({}, { size: 512 }, { size: 4096, dnssecOk: true });
    fc.assert(
      fc.property(
        fc.record({ queriedName: short, fields, limit: fc.integer({ min: 512, max: 3000 }) }),
        fc.tuple(records, records, records),
        ({ queriedName, fields, limit }, [answers, authorities, additionals]) => {
          const of = query(queriedName, fields);
          const bytes = write(of, { answers, authorities, additionals }, limit);
          assert.ok(bytes.length <= limit);
          const reply = readReply(bytes);
          assert.equal(reply.question, `${queriedName} A`);
          assert.equal(reply.opt === undefined, of.edns === undefined);
          const lower = (lines: readonly string[]) => lines.map((text) => text.toLowerCase());
          const written = [reply.answers, reply.authorities, reply.additionals];
          const expected = [answers, authorities, additionals].map((all) => all.map(recordLine));
          for (const [index, lines] of written.entries()) {
            assert.deepEqual(lower(lines), lower(expected[index]?.slice(0, lines.length) ?? []));
          }
          const isWhole = [0, 1].every(
            (index) => written[index]?.length === expected[index]?.length,
          );
          assert.equal(isTruncated(bytes), !isWhole);
          // Nothing that fits is left out.
          const unlimited = write(of, { answers, authorities, additionals });
          if (unlimited.length <= limit) assert.deepEqual(bytes, unlimited);
        },
      ),
      { seed: 2, numRuns: 500 },
    );
  });
});
