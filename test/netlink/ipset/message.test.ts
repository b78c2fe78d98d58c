import assert from 'node:assert/strict';
import fc from 'fast-check';
import { canonicalAddress, canonicalCidr } from '../../../api/addresses.ts';
import { addressFormatter } from '../../../netlink/core/address.ts';
import { encodeAttributes } from '../../../netlink/core/attribute.ts';
import { MalformedMessage } from '../../../netlink/core/error.ts';
import type { NetlinkRequest } from '../../../netlink/core/message.ts';
import { encodeNumber } from '../../../netlink/core/network-order.ts';
import { entryAttributes, type IpsetEntry, readEntries } from '../../../netlink/ipset/entry.ts';
import {
  createRequest,
  destroyRequest,
  entriesRequest,
  entryRequest,
  headersRequest,
  type IpsetSpec,
  protocolRequest,
  readHeader,
  readProtocol,
  readRevision,
  swapRequest,
  typeRequest,
} from '../../../netlink/ipset/message.ts';
import { checkProperty } from '../property.ts';

const DATA = 7;
const ADT = 8;

const address = fc.oneof(
  fc.ipV4(),
  // Without IPv4-mapped addresses, which are not canonical.
  fc
    .ipV6()
    .map(canonicalAddress)
    .filter((text) => text !== undefined),
);
const cidr = fc
  .tuple(address, fc.nat())
  .map(([text, bits]) => canonicalCidr(`${text}/${1 + (bits % (text.includes(':') ? 128 : 32))}`))
  .filter((text) => text !== undefined);
const net = fc.oneof(address, cidr);
const port = fc.nat(0xffff);
const protocol = fc.constantFrom('TCP' as const, 'UDP' as const, 'SCTP' as const, 1, 255);
const entries: fc.Arbitrary<IpsetEntry> = fc.record(
  {
    ip: net,
    protocol,
    port,
    ip2: net,
    mark: fc.nat(0xffffffff),
    skbMark: fc.nat(0xffffffff),
  },
  { requiredKeys: [], noNullPrototype: true },
);
interface Wire {
  readonly type: number;
  readonly flags: number;
  readonly payload: string;
}

/** nfgenmsg, IPSET_ATTR_PROTOCOL 6. */
const bare = hex('02000000 0500010006000000');
/** IPSET_ATTR_SETNAME "a". */
const named = hex(bare, '0600020061000000');

const lists = fc.array(entries, { maxLength: 20 });

const spec: IpsetSpec = {
  name: 'a',
  type: 'hash:ip,port',
  family: 'IPv6',
  skbinfo: true,
  maxElements: 0x01020304,
};

describe('message: entries of an ipset', () => {
  it('decodes encoded values unchanged', () => {
    checkProperty(
      fc.property(lists, (list) => {
        assert.deepEqual(readEntries(listed(list), 4, addressFormatter()), list);
      }),
    );
  });

  it('throws only MalformedMessage for invalid bytes', () => {
    const truncated = fc
      .tuple(lists, fc.nat(), fc.nat(), fc.nat(255))
      .map(([list, cut, at, value]) => {
        const bytes = listed(list);
        bytes[at % bytes.length] = value;
        return bytes.subarray(0, cut % (bytes.length + 1));
      });
    const random = fc.uint8Array({ maxLength: 100 }).map((array) => Buffer.from(array));
    checkProperty(
      fc.property(fc.oneof(truncated, random), (bytes) => {
        for (const read of [
          () => readEntries(bytes, 4, addressFormatter()),
          () => readHeader(bytes),
          () => readProtocol(bytes),
          () => readRevision(bytes, 'hash:ip'),
        ]) {
          try {
            read();
          } catch (error) {
            assert(error instanceof MalformedMessage, String(error));
          }
        }
      }),
    );
  });

  it('throws MalformedMessage for truncated numbers and addresses', () => {
    const read = (...attributes: { type: number; value: Buffer }[]) => {
      const list = { type: ADT, value: [{ type: DATA, value: attributes }] };
      return readEntries(encodeAttributes([list]), 0, addressFormatter());
    };
    assert.throws(() => read({ type: 4, value: Buffer.alloc(1) }), MalformedMessage);
    assert.throws(() => read({ type: 27, value: Buffer.alloc(4) }), MalformedMessage);
    assert.throws(() => read({ type: 1, value: Buffer.alloc(0) }), MalformedMessage);
    assert.throws(
      () => read({ type: 1, value: encodeAttributes([{ type: 1, value: Buffer.alloc(5) }]) }),
      MalformedMessage,
    );
  });

  it('ignores a mark with a partial mask', () => {
    const mark = { type: 27, value: Buffer.from('00000005000000ff', 'hex') };
    const bytes = encodeAttributes([{ type: ADT, value: [{ type: DATA, value: [mark] }] }]);
    assert.deepEqual(readEntries(bytes, 0, addressFormatter()), [{}]);
  });

  it('encodes an entry like the ipset command', () => {
    const request = entryRequest('add', 'a', {
      ip: '10.0.0.1',
      protocol: 'TCP',
      port: 80,
      skbMark: 5,
    });
    assert.deepEqual(wire(request), {
      type: 0x0609,
      flags: 0,
      payload: hex(
        named,
        '2c000780 0c000180080001400a000001 0600044000500000 0500070006000000',
        '0c001b4000000005ffffffff',
      ),
    });
  });

  it('deletes an entry without its mark', () => {
    const entry = {
      ip: '10.0.0.0/8',
      ip2: '2001:db8::/32',
      port: 1,
      portTo: 2,
      mark: 3,
      skbMark: 4,
    };
    assert.deepEqual(wire(entryRequest('delete', 'a', entry)), {
      type: 0x060a,
      flags: 0,
      payload: hex(
        named,
        '50000780 0c000180080001400a000000 0500030008000000 0600044000010000 0600054000020000',
        '180014801400024020010db8000000000000000000000000 0500150020000000 08000a4000000003',
      ),
    });
  });

  it('throws for an invalid entry', () => {
    for (const entry of [
      { ip: '0.0.0.0/0' },
      { ip2: '::/0' },
      { ip: '10.0.0.0/33' },
      { ip: '::/129' },
      { ip: '10.0.0.0/8.5' },
      { ip: '10.0.0.0/' },
      { port: 65536 },
      { port: -1 },
      { portTo: 5 },
      { port: 5, portTo: 4 },
      { port: 5, portTo: 65536 },
      { mark: 2 ** 32 },
      { skbMark: -1 },
      { protocol: 256 },
    ]) {
      assert.throws(() => entryAttributes(entry, true), RangeError, JSON.stringify(entry));
    }
  });
});

describe('message: ipset commands', () => {
  it('creates a hash set with family, size and skbinfo', () => {
    const create = wire(createRequest(spec, 5));
    assert.deepEqual(create, {
      type: 0x0602,
      flags: 0x200,
      payload: hex(
        named,
        '11000300686173683a69702c706f727400000000 0500040005000000 050005000a000000',
        '14000780 0800134001020304 0800084000000040',
      ),
    });
  });

  it('creates a bitmap of all ports for any family', () => {
    const bitmap: IpsetSpec = { ...spec, type: 'bitmap:port', skbinfo: false };
    assert.equal(
      wire(createRequest(bitmap, 3)).payload,
      hex(
        named,
        '100003006269746d61703a706f727400 0500040003000000 0500050000000000',
        '14000780 0600044000000000 06000540ffff0000',
      ),
    );
  });

  it('throws for an invalid set name; an empty one would mean all sets', () => {
    assert.deepEqual(wire(destroyRequest('a')), { type: 0x0603, flags: 0x200, payload: named });
    assert.deepEqual(wire(entriesRequest('a')), { type: 0x0607, flags: 0, payload: named });
    const swap = { type: 0x0606, flags: 0, payload: hex(named, '0600030062000000') };
    assert.deepEqual(wire(swapRequest('a', 'b')), swap);
    for (const name of ['', 'x'.repeat(32), 'ü'.repeat(16), 'a\0b']) {
      assert.throws(() => destroyRequest(name), RangeError);
      assert.throws(() => entriesRequest(name), RangeError);
      assert.throws(() => swapRequest('a', name), RangeError);
      assert.throws(() => entryRequest('add', name, {}), RangeError);
      assert.throws(() => createRequest({ ...spec, name }, 1), RangeError);
    }
    assert.doesNotThrow(() => destroyRequest('x'.repeat(31)));
  });

  it('requests headers, protocol versions and type revisions', () => {
    assert.equal(wire(headersRequest()).payload, hex(bare, '0800064000000004'));
    assert.equal(wire(protocolRequest()).payload, bare);
    assert.equal(
      wire(typeRequest('hash:ip', 'IPv4')).payload,
      hex(bare, '0c000300686173683a697000 0500050002000000'),
    );
  });

  it('uses the highest revision that both sides support', () => {
    const answer = (revision: number) => {
      const attribute = { type: 4, value: encodeNumber(revision, 1) };
      return Buffer.concat([Buffer.alloc(4), encodeAttributes([attribute])]);
    };
    assert.equal(readRevision(answer(4), 'hash:ip'), 4);
    assert.equal(readRevision(answer(6), 'hash:ip'), 6);
    assert.equal(readRevision(answer(7), 'hash:ip'), 6);
    assert.throws(() => readRevision(Buffer.alloc(4), 'hash:ip'), MalformedMessage);
  });

  it('requires protocol version 6', () => {
    const answer = (newest: number, oldest?: number) => {
      const attributes = [{ type: 1, value: encodeNumber(newest, 1) }];
      if (oldest !== undefined) attributes.push({ type: 10, value: encodeNumber(oldest, 1) });
      return Buffer.concat([Buffer.alloc(4), encodeAttributes(attributes)]);
    };
    assert.equal(readProtocol(answer(7, 6)), true);
    assert.equal(readProtocol(answer(6)), true);
    assert.equal(readProtocol(answer(8, 7)), false);
    assert.equal(readProtocol(answer(5)), false);
  });
});

function wire({ type, flags = 0, payload }: NetlinkRequest): Wire {
  return { type, flags, payload: payload.toString('hex') };
}

/** Joins hexadecimal parts; spaces are only for readability. */
function hex(...parts: readonly string[]): string {
  return parts.join('').replaceAll(' ', '');
}

/**
 * The entries as the kernel sends them in a dump, with only the attributes that the reader needs.
 */
function listed(list: readonly IpsetEntry[]): Buffer {
  const value = list.map((entry) => ({ type: DATA, value: entryAttributes(entry, true) }));
  return Buffer.concat([Buffer.alloc(4), encodeAttributes([{ type: ADT, value }])]);
}
