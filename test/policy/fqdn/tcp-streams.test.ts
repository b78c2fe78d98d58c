import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { TcpSegment } from '../../../policy/fqdn/packet.ts';
import { type StreamLimits, TcpStreams } from '../../../policy/fqdn/tcp-streams.ts';
import { checkProperty } from '../../netlink/property.ts';
import { framed } from './packets.ts';

const LIMITS: StreamLimits = { streams: 8, bytes: 1 << 20, outOfOrder: 16 };

/** Messages that are found in segments. */
function listener(limits = LIMITS) {
  const streams = new TcpStreams<string>(limits);
  const messages: string[] = [];
  const take = (fields: Partial<TcpSegment>) => {
    const segment: TcpSegment = {
      protocol: 'TCP',
      source: 'server',
      destination: 'client',
      data: Buffer.alloc(0),
      sequence: 0,
      syn: false,
      rst: false,
      ...fields,
    };
    return streams.addSegment(segment, (message) => messages.push(message.toString('latin1')));
  };
  return { streams, messages, take };
}

const bytes = (text: string) => Buffer.from(text, 'latin1');
const ONE = framed(bytes('first'));
const TWO = framed(bytes('second'));

describe('tcp-streams: DNS messages in TCP streams', () => {
  it('are found in one segment, in several, and several in one', () => {
    const { messages, take } = listener();
    take({ syn: true, sequence: 99 });
    take({ sequence: 100, data: ONE });
    assert.deepEqual(messages, ['first']);
    take({ sequence: 107, data: TWO.subarray(0, 1) });
    take({ sequence: 108, data: TWO.subarray(1, 4) });
    assert.deepEqual(messages, ['first']);
    take({ sequence: 111, data: Buffer.concat([TWO.subarray(4), ONE, TWO]) });
    assert.deepEqual(messages, ['first', 'second', 'first', 'second']);
  });

  it('are found in a SYN with data', () => {
    const { messages, take } = listener();
    take({ syn: true, sequence: 99, data: ONE });
    take({ sequence: 107, data: TWO });
    assert.deepEqual(messages, ['first', 'second']);
  });

  it('are found with reordered and repeated segments and sequence number wraparound', () => {
    const { messages, take } = listener();
    const start = 0xfffffffd;
    const at = (offset: number, data: Buffer) => take({ sequence: (start + offset) >>> 0, data });
    take({ syn: true, sequence: start - 1 });
    at(3, ONE.subarray(3));
    at(7, TWO);
    at(3, ONE.subarray(3));
    assert.deepEqual(messages, []);
    at(0, ONE.subarray(0, 5));
    assert.deepEqual(messages, ['first', 'second']);
    at(0, ONE);
    at(7, TWO);
    assert.deepEqual(messages, ['first', 'second']);
  });

  it('wait for a missing segment when later segments are retransmitted', () => {
    const { messages, take, streams } = listener();
    take({ syn: true, sequence: 99 });
    for (let time = 0; time < 3 * LIMITS.outOfOrder; time++) {
      // The buffer of a packet is reused for the next packet.
      const buffer = Buffer.from(ONE.subarray(3));
      take({ sequence: 103, data: buffer.subarray(0, 2) });
      buffer.fill(0);
    }
    take({ sequence: 103, data: ONE.subarray(3) });
    assert.equal(streams.stats().givenUp, 0);
    take({ sequence: 100, data: ONE.subarray(0, 3) });
    assert.deepEqual(messages, ['first']);
  });

  it('do not depend on the segmentation', () => {
    const message = fc.string({ minLength: 1, maxLength: 40, unit: 'grapheme-ascii' });
    checkProperty(
      fc.property(
        fc.array(message, { minLength: 1, maxLength: 6 }),
        fc.array(fc.tuple(fc.nat({ max: 260 }), fc.nat({ max: 60 })), { maxLength: 12 }),
        fc.nat({ max: 0xffffffff }),
        fc.infiniteStream(fc.nat()),
        (texts, extra, start, random) => {
          const stream = Buffer.concat(texts.map((text) => framed(bytes(text))));
          // Consecutive pieces of ten bytes that cover the stream, and arbitrary pieces.
          const pieces = Array.from({ length: Math.ceil(stream.length / 10) }, (_, index) => {
            return [index * 10, 10] as const;
          });
          const all = [...pieces, ...extra.filter(([at]) => at < stream.length)];
          const shuffled = all
            .map((piece) => ({ piece, key: random.next().value }))
            .sort((one, other) => one.key - other.key)
            .map(({ piece }) => piece);
          const { messages, take, streams } = listener({ ...LIMITS, outOfOrder: 64 });
          take({ syn: true, sequence: start });
          for (const [at, length] of shuffled) {
            const data = stream.subarray(at, at + length);
            take({ sequence: (start + 1 + at) >>> 0, data });
          }
          assert.deepEqual(messages, texts);
          assert.deepEqual(streams.stats(), { streams: 1, bytes: 0, givenUp: 0 });
        },
      ),
    );
  });

  it('are not found without the SYN, or after a lost segment', () => {
    const { messages, take } = listener();
    assert.equal(take({ sequence: 100, data: ONE }), undefined);
    take({ syn: true, sequence: 199 });
    take({ sequence: 201, data: ONE });
    assert.deepEqual(messages, []);
  });

  it('are separate for each connection and direction', () => {
    const { messages, take, streams } = listener();
    take({ syn: true, sequence: 99 });
    take({ syn: true, sequence: 99, destination: 'other' });
    take({ syn: true, sequence: 99, source: 'client', destination: 'server' });
    assert.equal(streams.stats().streams, 3);
    take({ sequence: 100, data: ONE.subarray(0, 4) });
    take({ sequence: 104, data: ONE.subarray(4), destination: 'other' });
    take({ sequence: 104, data: ONE.subarray(4), source: 'client', destination: 'server' });
    assert.deepEqual(messages, []);
    take({ sequence: 104, data: ONE.subarray(4) });
    assert.deepEqual(messages, ['first']);
  });

  it('restart with a new SYN, but not with a retransmitted SYN', () => {
    const { messages, take } = listener();
    const stream = take({ syn: true, sequence: 99 });
    assert.equal(take({ syn: true, sequence: 99 }), stream);
    take({ sequence: 100, data: ONE.subarray(0, 4) });
    assert.notEqual(take({ syn: true, sequence: 999 }), stream);
    take({ sequence: 104, data: ONE.subarray(4) });
    take({ sequence: 1000, data: TWO });
    assert.deepEqual(messages, ['second']);
  });

  it('keep the tag of their stream', () => {
    const { take } = listener();
    const stream = take({ syn: true, sequence: 99 });
    assert.ok(stream);
    stream.tag = 'note';
    assert.equal(take({ sequence: 100, data: ONE })?.tag, 'note');
  });

  it('end with a RST', () => {
    const { messages, take, streams } = listener();
    take({ syn: true, sequence: 99 });
    take({ sequence: 100, data: ONE.subarray(0, 4) });
    assert.equal(take({ rst: true, sequence: 104 }), undefined);
    assert.deepEqual(streams.stats(), { streams: 0, bytes: 0, givenUp: 0 });
    take({ sequence: 104, data: ONE.subarray(4) });
    assert.deepEqual(messages, []);
  });

  describe('streams are given up', () => {
    it('when a message has length 0', () => {
      const { messages, take, streams } = listener();
      take({ syn: true, sequence: 99 });
      take({ sequence: 100, data: Buffer.concat([ONE, Buffer.alloc(2), TWO]) });
      assert.deepEqual(messages, ['first']);
      assert.deepEqual(streams.stats(), { streams: 0, bytes: 0, givenUp: 1 });
    });

    it('when too many segments are out of order', () => {
      const { messages, take, streams } = listener({ ...LIMITS, outOfOrder: 2 });
      take({ syn: true, sequence: 99 });
      take({ sequence: 101, data: ONE.subarray(1, 2) });
      take({ sequence: 103, data: ONE.subarray(3, 4) });
      assert.equal(streams.stats().bytes, 2);
      // A segment far ahead is ignored.
      take({ sequence: 100 + (1 << 21), data: ONE });
      assert.equal(streams.stats().bytes, 2);
      take({ sequence: 105, data: ONE.subarray(5, 6) });
      assert.deepEqual(streams.stats(), { streams: 0, bytes: 0, givenUp: 1 });
      take({ sequence: 100, data: ONE });
      assert.deepEqual(messages, []);
    });

    it('when there are too many, the least recently active first', () => {
      const { messages, take, streams } = listener({ ...LIMITS, streams: 2 });
      take({ syn: true, sequence: 99, source: 'a' });
      take({ syn: true, sequence: 99, source: 'b' });
      take({ sequence: 100, data: ONE, source: 'a' });
      take({ syn: true, sequence: 99, source: 'c' });
      take({ sequence: 100, data: TWO, source: 'b' });
      assert.deepEqual(messages, ['first']);
      take({ sequence: 107, data: TWO, source: 'a' });
      take({ sequence: 100, data: ONE, source: 'c' });
      assert.deepEqual(messages, ['first', 'second', 'first']);
      assert.equal(streams.stats().givenUp, 1);
    });

    it('when too many bytes are buffered', () => {
      const { messages, take, streams } = listener({ ...LIMITS, bytes: 8192 });
      const long = framed(Buffer.alloc(6000, 'x'));
      for (const source of ['a', 'b']) {
        take({ syn: true, sequence: 99, source });
        for (let at = 0; at < 5000; at += 1000) {
          take({ sequence: 100 + at, data: long.subarray(at, at + 1000), source });
          assert.ok(streams.stats().bytes <= 8192);
        }
      }
      assert.deepEqual([streams.stats().streams, streams.stats().givenUp], [1, 1]);
      take({ sequence: 5100, data: long.subarray(5000), source: 'b' });
      assert.equal(messages[0]?.length, 6000);
    });
  });

  it('use bounded memory for random segments', () => {
    const limits = { streams: 4, bytes: 4096, outOfOrder: 4 };
    const segment = fc.record({
      source: fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f'),
      sequence: fc.oneof(fc.nat({ max: 3000 }), fc.nat({ max: 0xffffffff })),
      data: fc.uint8Array({ maxLength: 1500 }).map((data) => Buffer.from(data)),
      syn: fc.boolean(),
      rst: fc.integer({ min: 0, max: 9 }).map((number) => number === 0),
    });
    checkProperty(
      fc.property(fc.array(segment, { maxLength: 40 }), (segments) => {
        const { take, streams } = listener(limits);
        for (const each of segments) {
          take(each);
          const numbers = streams.stats();
          assert.ok(numbers.streams <= limits.streams && numbers.bytes <= limits.bytes);
          assert.ok(numbers.bytes >= 0);
        }
        for (const source of ['a', 'b', 'c', 'd', 'e', 'f']) take({ rst: true, source });
        assert.deepEqual([streams.stats().streams, streams.stats().bytes], [0, 0]);
      }),
    );
  });
});
