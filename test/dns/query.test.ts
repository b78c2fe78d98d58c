import assert from 'node:assert/strict';
import { decode } from 'dns-packet';
import fc from 'fast-check';
import { type DnsQuery, readQuery } from '../../dns/query.ts';
import { queryBytes } from './messages.ts';

function good(bytes: Buffer): DnsQuery {
  const query = readQuery(bytes);
  assert.ok(query !== undefined && 'name' in query);
  return query;
}

/** A query whose name has these labels, whatever their bytes. */
function withLabels(labels: readonly Buffer[]): Buffer {
  const name = Buffer.concat([
    ...labels.flatMap((label) => [Buffer.from([label.length]), label]),
    Buffer.from([0]),
  ]);
  const header = queryBytes('.', 'A').subarray(0, 12);
  return Buffer.concat([header, name, Buffer.from([0, 1, 0, 1])]);
}

function changed(bytes: Buffer, change: (bytes: Buffer) => void): Buffer {
  const copy = Buffer.from(bytes);
  change(copy);
  return copy;
}

const PLAIN = queryBytes('Web.Default.SVC.cluster.local', 'AAAA');
const WITH_OPT = queryBytes('web.example', 'A', { size: 1400 });

describe('query: readQuery()', () => {
  it('parses name, type, class and flags', () => {
    const { question, ...rest } = good(PLAIN);
    assert.deepEqual(rest, {
      id: 4711,
      recursionDesired: true,
      name: 'web.default.svc.cluster.local',
      type: 28,
      class: 1,
      edns: undefined,
    });
    assert.deepEqual(question, PLAIN.subarray(12));
    assert.equal(good(queryBytes('a.b', 'A', { recursionDesired: false })).recursionDesired, false);
    assert.equal(good(queryBytes('a.b', 'A', { class: 'CH' })).class, 3);
    assert.equal(good(queryBytes('.', 'NS')).name, '');
    assert.equal(good(queryBytes('a.b', 'UNKNOWN_65')).type, 65);
  });

  it('parses the OPT record', () => {
    const of = (fields: object) => good(queryBytes('a.b', 'A', fields)).edns;
    assert.deepEqual(of({ size: 1400 }), {
      size: 1400,
      version: 0,
      dnssecOk: false,
      hasSubnet: false,
    });
    assert.deepEqual(of({ size: 1, version: 3, dnssecOk: true }), {
      size: 1,
      version: 3,
      dnssecOk: true,
      hasSubnet: false,
    });
    const withSubnet = Buffer.concat([WITH_OPT, Buffer.from([0, 8, 0, 4, 0, 1, 0, 0])]);
    withSubnet.writeUInt16BE(8, WITH_OPT.length - 2);
    assert.equal(good(withSubnet).edns?.hasSubnet, true);
  });

  it('skips EDNS options and records other than OPT', () => {
    const withOption = Buffer.concat([WITH_OPT, Buffer.from([0, 3, 0, 1, 7])]);
    withOption.writeUInt16BE(5, WITH_OPT.length - 2);
    assert.equal(good(withOption).edns?.size, 1400);
    // A signature, for example: the owner is a compression pointer, the data is not parsed.
    const record = Buffer.from([0xc0, 12, 0, 250, 0, 255, 0, 0, 0, 0, 0, 2, 1, 2]);
    const signed = Buffer.concat([WITH_OPT, record]);
    signed.writeUInt16BE(2, 10);
    assert.equal(good(signed).edns?.size, 1400);
  });

  it('escapes a dot within a label', () => {
    const labels = ['web.default', 'svc'].map((label) => Buffer.from(label));
    assert.equal(good(withLabels(labels)).name, 'web\\.default.svc');
  });

  it('does not fold non-ASCII letters to ASCII', () => {
    // The Kelvin sign in UTF-8, whose lower case is k.
    assert.notEqual(good(withLabels([Buffer.from('\u212a8s')])).name, 'k8s');
  });

  it('ignores responses, and messages that are too short or too long', () => {
    const answer = changed(PLAIN, (bytes) => bytes.writeUInt16BE(0x8000, 2));
    const long = Buffer.concat([PLAIN, Buffer.alloc(4097 - PLAIN.length)]);
    for (const bytes of [answer, PLAIN.subarray(0, 11), Buffer.alloc(0), long]) {
      assert.equal(readQuery(bytes), undefined);
    }
    assert.ok(readQuery(long.subarray(0, 4096)) !== undefined);
  });

  it('answers NOTIMP to other opcodes', () => {
    for (let opcode = 1; opcode < 16; opcode++) {
      const bytes = changed(PLAIN, (copy) => copy.writeUInt16BE((opcode << 11) | 0x100, 2));
      const expected = { id: 4711, opcode, recursionDesired: true, rcode: 'NOTIMP' };
      assert.deepEqual(readQuery(bytes), expected);
    }
  });

  describe('malformed queries', () => {
    const counts = (at: number, count: number) =>
      changed(WITH_OPT, (bytes) => bytes.writeUInt16BE(count, at));
    const pointer = changed(PLAIN, (bytes) => bytes.writeUInt16BE(0xc000, 12));
    const loop = changed(PLAIN, (bytes) => bytes.writeUInt16BE(0xc00c, 12));
    const twice = Buffer.concat([WITH_OPT, WITH_OPT.subarray(-11)]);
    twice.writeUInt16BE(2, 10);
    // Valid except for its name.
    const ofName = Buffer.concat([
      WITH_OPT.subarray(0, -11),
      Buffer.from([1, 0x62]),
      WITH_OPT.subarray(-11),
    ]);
    const label = (length: number) => Buffer.alloc(length, 0x61);
    const optLength = (length: number, ...data: number[]) =>
      changed(Buffer.concat([WITH_OPT, Buffer.from(data)]), (copy) =>
        copy.writeUInt16BE(length, WITH_OPT.length - 2),
      );
    for (const [what, bytes] of [
      ['no question', counts(4, 0)],
      ['two questions', counts(4, 2)],
      ['many questions', counts(4, 0xffff)],
      ['answers', counts(6, 2)],
      ['authorities', counts(8, 2)],
      ['additional records', counts(10, 3)],
      ['a missing record', counts(6, 1)],
      ['a compression pointer to the header', pointer],
      ['a compression pointer to itself', loop],
      ['a label of an unused type', changed(PLAIN, (copy) => copy.writeUInt8(0x41, 12))],
      ['a label past the end', changed(PLAIN, (copy) => copy.writeUInt8(63, 12))],
      ['a question without its class', PLAIN.subarray(0, -1)],
      ['a question without its type', PLAIN.subarray(0, -4)],
      ['a truncated name', PLAIN.subarray(0, 20)],
      ['a header alone', PLAIN.subarray(0, 12)],
      ['a truncated OPT record', WITH_OPT.subarray(0, -1)],
      ['an OPT record past the end', optLength(4)],
      ['an option that exceeds its OPT record', optLength(4, 0, 3, 0, 1)],
      ['an option without its length', optLength(3, 0, 3, 0)],
      ['two OPT records', twice],
      ['an OPT record that the root does not own', ofName],
      ['a name of 256 bytes', withLabels([label(63), label(63), label(63), label(62)])],
    ] as const) {
      it(`answers FORMERR to ${what}`, () => {
        const query = readQuery(bytes);
        assert.ok(query !== undefined && 'rcode' in query);
        assert.equal(query.rcode, 'FORMERR');
      });
    }

    it('accepts a name of 255 bytes', () => {
      const bytes = withLabels([label(63), label(63), label(63), label(61)]);
      assert.equal(good(bytes).name.length, 253);
    });
  });

  it('parses ASCII names to the same text as dns-packet', () => {
    const label = fc.stringMatching(/^[a-zA-Z0-9_-]{1,20}$/);
    const names = fc.array(label, { minLength: 1, maxLength: 8 }).map((all) => all.join('.'));
    fc.assert(
      fc.property(names, fc.option(fc.integer({ min: 0, max: 0xffff })), (name, size) => {
        const bytes = queryBytes(name, 'SRV', size === null ? {} : { size: Math.max(1, size) });
        const [expected] = decode(bytes).questions ?? [];
        assert.equal(good(bytes).name, expected?.name.toLowerCase());
      }),
      { seed: 1, numRuns: 300 },
    );
  });
});
