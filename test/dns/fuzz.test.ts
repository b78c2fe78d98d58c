/**
 * Property: whatever it receives, a handler sends nothing or a response that can be parsed; it
 * never throws.
 */
import assert from 'node:assert/strict';
import { isIP } from 'node:net';
import fc from 'fast-check';
import { NoResponseError } from '../../dns/exchange.ts';
import { createHandler, type HandlerResult } from '../../dns/handler.ts';
import { type DnsQuery, HEADER_LENGTH, readQuery } from '../../dns/query.ts';
import type { DnsRecord } from '../../dns/records.ts';
import { encodeAnswer, encodeResponse, FLAG } from '../../dns/response.ts';
import {
  BadResponseError,
  readUpstreamAnswer,
  type UpstreamAnswer,
} from '../../dns/upstream-answer.ts';
import { a, authority, cname, fakeZone, queryBytes, readReply, srv } from './messages.ts';

const RUNS = 3000;
const RECORDS: readonly DnsRecord[] = [
  a('web.default.svc.cluster.local', '10.96.0.1'),
  ...Array.from({ length: 300 }, (_, index) => a('many.svc.cluster.local', `fd00::${index}`)),
  srv('_http._tcp.web.default.svc.cluster.local', 80, 'many.svc.cluster.local'),
  cname('out.svc.cluster.local', 'example.com'),
  cname('loop.svc.cluster.local', 'loop.svc.cluster.local'),
];
const NAMES = [...new Set(RECORDS.map(({ name }) => name)), 'example.com', 'cluster.local', '.'];
const TYPES = ['A', 'AAAA', 'SRV', 'CNAME', 'ANY', 'SOA', 'NS', 'PTR', 'AXFR', 'UNKNOWN_65'];

const QUERY = readQuery(queryBytes('out.svc.cluster.local', 'A')) as DnsQuery;

const handle = createHandler({
  authority: authority(fakeZone(RECORDS), { random: () => 0.5 }),
  onInternalError: (error) => {
    throw error;
  },
  forwarder: {
    ask: async (bytes) => {
      const response = Buffer.from(bytes);
      response.writeUInt16BE(FLAG.QR, 2);
      return response;
    },
    resolve: async () => {
      throw new NoResponseError({ address: '192.0.2.1', port: 53 }, 'TIMEOUT');
    },
  },
});

const transports = fc.constantFrom('udp' as const, 'tcp' as const);

/** A valid query of each kind. */
const queries = fc
  .record({
    name: fc.constantFrom(...NAMES),
    type: fc.constantFrom(...TYPES),
    id: fc.nat(0xffff),
    fields: fc.constantFrom(
      {},
      { size: 512 },
      { size: 4096, dnssecOk: true },
      { size: 1, version: 1 },
    ),
  })
  .map(({ name, type, id, fields }) => queryBytes(name, type, { id, ...fields }));

/** Bytes with random changes, deletions, insertions or truncation. */
const mutations = fc.tuple(
  queries,
  fc.array(
    fc.record({
      at: fc.nat(120),
      how: fc.constantFrom('set', 'insert', 'remove', 'cut', 'pointer', 'count'),
      value: fc.oneof(fc.nat(255), fc.constantFrom(0, 0xc0, 0xff, 63, 64)),
    }),
    { minLength: 1, maxLength: 6 },
  ),
);

type Mutation = typeof mutations extends fc.Arbitrary<infer T> ? T : never;

function mutated([bytes, changes]: Mutation): Buffer {
  let list = [...bytes];
  for (const { at: place, how, value } of changes) {
    const at = list.length === 0 ? 0 : place % list.length;
    if (how === 'set') list[at] = value;
    else if (how === 'insert') list.splice(at, 0, value);
    else if (how === 'remove') list.splice(at, 1);
    else if (how === 'cut') list = list.slice(0, at);
    else if (how === 'pointer') list.splice(at, 2, 0xc0, value);
    else list[4 + (at % 8)] = value;
  }
  return Buffer.from(list);
}

async function check(bytes: Buffer, transport: 'udp' | 'tcp'): Promise<void> {
  const before = Buffer.from(bytes);
  const handled: HandlerResult = await handle(bytes, transport);
  assert.deepEqual(bytes, before, 'the query is not modified');
  const { response, served } = handled;
  assert.equal(response === undefined, served === undefined);
  if (response === undefined) {
    const isAnswer = bytes.length >= HEADER_LENGTH && (bytes.readUInt16BE(2) & FLAG.QR) !== 0;
    assert.ok(isAnswer || bytes.length < HEADER_LENGTH || bytes.length > 4096);
    return;
  }
  assert.equal(response.readUInt16BE(0), bytes.readUInt16BE(0));
  assert.ok((response.readUInt16BE(2) & FLAG.QR) !== 0);
  // Forwarded queries get the response that the fake resolver made from them.
  if (served?.by === 'forward') return;
  assert.ok(response.length <= (transport === 'udp' ? 1232 : 65_535));
  const { question } = readReply(response);
  if (served?.query !== undefined) {
    const end = HEADER_LENGTH + served.query.question.length;
    assert.ok(question !== undefined);
    assert.deepEqual(response.subarray(HEADER_LENGTH, end), bytes.subarray(HEADER_LENGTH, end));
  }
}

describe('fuzz: readUpstreamAnswer()', () => {
  it('parses any bytes or throws BadResponseError', () => {
    const answers = mutations.map((mutation) => {
      const bytes = mutated(mutation);
      if (bytes.length > 4) bytes.writeUInt16BE(FLAG.QR, 2);
      return bytes;
    });
    // Records with arbitrary owner, type, length and data.
    const record = fc
      .tuple(
        fc.oneof(
          fc.constant(Buffer.from([0xc0, 12])),
          fc
            .uint8Array({ minLength: 1, maxLength: 63, size: 'max' })
            .map((label) => Buffer.concat([Buffer.from([label.length]), label, Buffer.from([0])])),
        ),
        fc.oneof(
          fc.constantFrom(1, 2, 5, 6, 12, 13, 15, 16, 28, 33, 35, 43, 46, 47, 48, 50, 52, 257),
          fc.nat(300),
        ),
        fc.oneof(
          fc.uint8Array({ maxLength: 60, size: 'max' }).map((bytes) => Buffer.from(bytes)),
          fc.constantFrom(
            Buffer.from([192, 0, 2, 1]),
            Buffer.from([3, 0x77, 0x77, 0x77, 0xc0, 12]),
            Buffer.from([1, 0xff, 0]),
          ),
        ),
        fc.constantFrom(0, 0, 0, 0, 1, -1, 200),
      )
      .map(([owner, type, data, off]) => {
        const head = Buffer.from([0, 0, 0, 1, 0, 0, 0, 9, 0, 0]);
        head.writeUInt16BE(type, 0);
        head.writeUInt16BE(Math.max(0, data.length + off), 8);
        return Buffer.concat([owner, head, data]);
      });
    const long = fc
      .tuple(fc.array(record, { maxLength: 5 }), fc.constantFrom(6, 8), fc.constantFrom(0, 3))
      .map(([records, section, rcode]) => {
        const bytes = Buffer.concat([queryBytes('out.example.com', 'A'), ...records]);
        bytes.writeUInt16BE(FLAG.QR | rcode, 2);
        bytes.writeUInt16BE(records.length, section);
        return bytes;
      });
    fc.assert(
      fc.property(fc.oneof(answers, long), (bytes) => {
        fc.pre(bytes.length >= HEADER_LENGTH);
        let resolution: UpstreamAnswer;
        try {
          resolution = readUpstreamAnswer(bytes);
        } catch (error) {
          assert.ok(error instanceof BadResponseError, String(error));
          return;
        }
        const sections = { ...resolution, authoritative: true, additionals: [] };
        const options = { recursionAvailable: true, limit: 65_535, random: () => 0 };
        const written = encodeResponse(QUERY, encodeAnswer(QUERY.question, sections), options);
        const { answers, authorities } = readReply(written);
        assert.equal(answers.length, resolution.answers.length);
        assert.equal(authorities.length, resolution.authorities.length);
        for (const { type, data } of resolution.answers) {
          if (type === 'A' || type === 'AAAA') assert.ok(isIP(data) !== 0, data);
        }
      }),
      { seed: 9, numRuns: RUNS },
    );
  });
});

describe('fuzz: the query handler survives', () => {
  for (const [index, [what, arbitrary]] of (
    [
      [
        'random bytes',
        fc.uint8Array({ maxLength: 300, size: 'max' }).map((bytes) => Buffer.from(bytes)),
      ],
      [
        'random bytes after a valid header',
        fc
          .tuple(
            fc.uint8Array({ maxLength: 4200, size: 'max' }),
            fc.constantFrom(0, 0, 0, 1, 0xffff),
          )
          .map(([bytes, count]) => {
            const header = Buffer.from([0, 1, 1, 0, 0, 1, 0, count & 1, 0, 0, 0, 0]);
            header.writeUInt16BE(count, 10);
            return Buffer.concat([header, bytes]);
          }),
      ],
      [
        'names made of compression pointers',
        fc
          .array(fc.tuple(fc.constantFrom(0xc0, 0xc0, 0xff, 1), fc.nat(60)), {
            maxLength: 40,
            size: 'max',
          })
          .map((pairs) => {
            const header = Buffer.from([0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 0, 2]);
            return Buffer.concat([header, Buffer.from([0, 0, 1, 0, 1]), Buffer.from(pairs.flat())]);
          }),
      ],
      ['corrupted queries', mutations.map(mutated)],
      ['good queries', queries],
    ] as const
  ).entries()) {
    it(what, async () => {
      await fc.assert(fc.asyncProperty(arbitrary, transports, check), {
        seed: index + 1,
        numRuns: RUNS,
      });
    });
  }
});
