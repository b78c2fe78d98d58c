import assert from 'node:assert/strict';
import fc from 'fast-check';
import { canonicalAddress } from '../../../api/addresses.ts';
import {
  type ConntrackEntry,
  deletePayload,
  dumpPayload,
  entryReader,
} from '../../../netlink/conntrack/entry.ts';
import { EntryReader } from '../../../netlink/conntrack/entry-reader.ts';
import { tupleAttributes } from '../../../netlink/conntrack/tuple.ts';
import { addressBytes, addressFormatter } from '../../../netlink/core/address.ts';
import { encodeAttributes, readAttributes } from '../../../netlink/core/attribute.ts';
import { MalformedMessage } from '../../../netlink/core/error.ts';
import { encodeNumber } from '../../../netlink/core/network-order.ts';
import { checkProperty } from '../property.ts';

const CTA_TUPLE_ORIG = 1;
const CTA_TUPLE_REPLY = 2;
const CTA_ID = 12;
const CTA_ZONE = 18;
const CTA_FILTER = 25;

const port = fc.nat(0xffff);
const addresses = {
  IPv4: fc.ipV4(),
  // Without IPv4-mapped addresses, which are not canonical.
  IPv6: fc
    .ipV6()
    .map(canonicalAddress)
    .filter((text) => text !== undefined),
};
const entries: fc.Arbitrary<ConntrackEntry> = fc
  .constantFrom('IPv4' as const, 'IPv6' as const)
  .chain((family) =>
    fc.record(
      {
        family: fc.constant(family),
        protocol: fc.constantFrom(1, 6, 17, 58, 132),
        origSrc: addresses[family],
        origDst: addresses[family],
        origSrcPort: port,
        origDstPort: port,
        replySrc: addresses[family],
        replyDst: addresses[family],
        replySrcPort: port,
        replyDstPort: port,
        id: fc.nat(0xffffffff),
        zone: port,
        status: fc.constant(0),
      },
      { noNullPrototype: true },
    ),
  );

describe('entry: conntrack entries', () => {
  const reader = new EntryReader();
  /** At an offset, as in a buffer of many datagrams. */
  const readDetailed = (bytes: Buffer) =>
    reader.read(Buffer.concat([Buffer.alloc(20), bytes]), 20, 20 + bytes.length);
  /** The fields of `like`, getters too. */
  const fieldsOf = (entry: object | undefined, like: object) =>
    Object.fromEntries(Object.keys(like).map((name) => [name, Reflect.get(entry ?? {}, name)]));

  it('decodes encoded values unchanged', () => {
    checkProperty(
      fc.property(entries, (entry) => {
        const bytes = encoded(entry);
        assert.deepEqual(entryReader({ family: entry.family })(bytes), entry);
        assert.deepEqual(fieldsOf(readDetailed(bytes), entry), entry);
      }),
    );
  });

  it('matches a filter with the same fields, and no other filter', () => {
    checkProperty(
      fc.property(entries, (entry) => {
        const { family, protocol, origDst } = entry;
        const bytes = encoded(entry);
        assert.deepEqual(entryReader({ family, protocol, origDst })(bytes), entry);
        const otherFamily = family === 'IPv4' ? 'IPv6' : 'IPv4';
        const otherDst = family === 'IPv4' ? '192.0.2.1' : '2001:db8::1';
        for (const filter of [
          { family: otherFamily } as const,
          { family, protocol: protocol + 1 },
          ...(origDst === otherDst ? [] : [{ family, origDst: otherDst }]),
        ]) {
          assert.equal(entryReader(filter)(bytes), undefined);
        }
      }),
    );
  });

  it('reads counters of both directions, the TCP state, the start and the end, only when asked', () => {
    const entry = fc.sample(entries, { seed: 20, numRuns: 1 })[0];
    assert(entry !== undefined);
    const counter = (packets: number, bytes: number) => [
      { type: 1, value: encodeNumber(packets, 8) },
      { type: 2, value: encodeNumber(bytes, 8) },
    ];
    const details = encodeAttributes([
      { type: 9, value: counter(3, 2 ** 40) },
      { type: 10, value: counter(2, 5) },
      { type: 4, value: [{ type: 1, value: [{ type: 1, value: encodeNumber(3, 1) }] }] },
      {
        type: 20,
        value: [
          { type: 1, value: encodeNumber(1_700_000_000_000_000_000, 8) },
          { type: 2, value: encodeNumber(1_700_000_001_000_000_000, 8) },
        ],
      },
    ]);
    const bytes = Buffer.concat([encoded(entry), details]);
    const { family } = entry;
    assert.deepEqual(entryReader({ family })(bytes), entry);
    assert.deepEqual(readDetailed(bytes)?.details, {
      counters: { packets: 5, bytes: 2 ** 40 + 5 },
      tcpState: 'ESTABLISHED',
      startedAt: 1_700_000_000_000,
      eventAt: 1_700_000_001_000,
    });
    assert.deepEqual(readDetailed(encoded(entry))?.details, {
      counters: undefined,
      tcpState: undefined,
      startedAt: undefined,
      eventAt: undefined,
    });
    const short = encodeAttributes([{ type: 9, value: [{ type: 1, value: Buffer.alloc(4) }] }]);
    assert.throws(() => readDetailed(Buffer.concat([encoded(entry), short])), MalformedMessage);
  });

  it('throws only MalformedMessage for invalid bytes', () => {
    const read = entryReader({ family: 'IPv6' });
    const truncated = fc
      .tuple(entries, fc.nat(), fc.nat(), fc.nat(255))
      .map(([entry, cut, at, value]) => {
        const bytes = encoded(entry);
        bytes[at % bytes.length] = value;
        return bytes.subarray(0, cut % (bytes.length + 1));
      });
    const random = fc.uint8Array({ maxLength: 100 }).map((array) => Buffer.from(array));
    checkProperty(
      fc.property(fc.oneof(truncated, random), (bytes) => {
        try {
          read(bytes);
          readDetailed(bytes);
        } catch (error) {
          assert(error instanceof MalformedMessage, String(error));
        }
      }),
    );
  });

  it('deletes by tuple and ID, and by zone unless it is the default zone', () => {
    checkProperty(
      fc.property(entries, (entry) => {
        const attributes = readAttributes(deletePayload(entry), 4);
        const zone = entry.zone === 0 ? [] : [CTA_ZONE];
        assert.deepEqual([...attributes.keys()], [CTA_TUPLE_ORIG, CTA_ID, ...zone]);
        assert.equal(attributes.get(CTA_ID)?.readUInt32BE(), entry.id);
      }),
    );
  });

  it('filters in the kernel, except by IPv6 destination, which kernels invert', () => {
    const flags = (payload: Buffer) => {
      const filter = readAttributes(payload, 4).get(CTA_FILTER);
      return filter === undefined ? 0 : readAttributes(filter, 0).get(1)?.readUInt8();
    };
    const [v4, v6] = ['192.0.2.1', '2001:db8::1'];
    assert.equal(flags(dumpPayload({ family: 'IPv4' }, true)), 0);
    assert.equal(flags(dumpPayload({ family: 'IPv4', origDst: v4, protocol: 17 }, true)), 2 | 8);
    assert.equal(flags(dumpPayload({ family: 'IPv4', origDst: v4 }, true)), 2);
    assert.equal(flags(dumpPayload({ family: 'IPv6', origDst: v6, protocol: 17 }, true)), 8);
    assert.equal(flags(dumpPayload({ family: 'IPv6', origDst: v6 }, true)), 0);
    assert.equal(flags(dumpPayload({ family: 'IPv4', origDst: v4, protocol: 17 }, false)), 0);
  });
});

describe('entry: addresses of conntrack entries', () => {
  it('formats an address as the canonical text it was encoded from', () => {
    const format = addressFormatter();
    checkProperty(
      fc.property(fc.oneof(addresses.IPv4, addresses.IPv6), (text) => {
        const bytes = addressBytes(text);
        assert.equal(format(bytes, 0, bytes.length), text);
      }),
    );
  });

  it('throws MalformedMessage for an address of 5 bytes', () => {
    assert.throws(() => addressFormatter()(Buffer.alloc(8), 0, 5), MalformedMessage);
  });
});

/** The payload of the entry as the kernel sends it in a dump. */
function encoded(entry: ConntrackEntry): Buffer {
  const reply = tupleAttributes({
    src: entry.replySrc,
    dst: entry.replyDst,
    protocol: entry.protocol,
    ports: [entry.replySrcPort, entry.replyDstPort],
  });
  const rest = encodeAttributes([{ type: CTA_TUPLE_REPLY, value: reply }]);
  return Buffer.concat([deletePayload(entry), rest]);
}
