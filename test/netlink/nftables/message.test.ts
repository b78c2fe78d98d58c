import assert from 'node:assert/strict';
import fc from 'fast-check';
import { MalformedMessage } from '../../../netlink/core/error.ts';
import { u32 } from '../../../netlink/core/host-order.ts';
import {
  type NetlinkMessage,
  NLM_F_ACK,
  numberMessages,
  type PackedMessages,
  readMessages,
} from '../../../netlink/core/message.ts';
import { portIdFilter } from '../../../netlink/core/socket-filter.ts';
import { readChain } from '../../../netlink/nftables/chain.ts';
import { visitElements } from '../../../netlink/nftables/element.ts';
import {
  chainsRequest,
  deleteTableRequest,
  elementsRequest,
  genidOf,
  isElementsMessage,
  readNotification,
  readSet,
  readTable,
  setRequest,
  tableRequest,
  tablesRequest,
} from '../../../netlink/nftables/message.ts';
import { TransactionWriter } from '../../../netlink/nftables/transaction.ts';
import type { NftElement, NftVerdict } from '../../../netlink/nftables/types.ts';
import { checkProperty } from '../property.ts';

const AF_INET = 2;
/** NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWSETELEM, NFT_MSG_DELSETELEM. */
const NEWSETELEM = 0xa0c;
const DELSETELEM = 0xa0e;

const value = fc.uint8Array({ minLength: 1, maxLength: 64 }).map((array) => Buffer.from(array));
const chain = fc.string({ minLength: 1, maxLength: 60 }).filter((text) => !text.includes('\0'));
const verdict: fc.Arbitrary<NftVerdict> = fc.oneof(
  fc.record(
    { kind: fc.constantFrom('accept' as const, 'drop' as const, 'return' as const) },
    { noNullPrototype: true },
  ),
  fc.record(
    { kind: fc.constantFrom('goto' as const, 'jump' as const), chain },
    { noNullPrototype: true },
  ),
);
const element: fc.Arbitrary<NftElement> = fc.record(
  { key: value, keyEnd: value, data: fc.oneof(value, verdict) },
  { requiredKeys: ['key'], noNullPrototype: true },
);
const written = fc.record({
  action: fc.constantFrom('add' as const, 'delete' as const),
  set: fc.constantFrom('a', 'bb'),
  element,
});
const transactions = fc.array(written, { minLength: 1, maxLength: 60 });

type Written = { action: 'add' | 'delete'; set: string; element: NftElement };

function write(list: readonly Written[]): { writer: TransactionWriter; packed: PackedMessages } {
  const writer = new TransactionWriter(AF_INET, 'pw');
  for (const { action, set, element } of list) writer.write(action, set, element);
  return { writer, packed: writer.finish() };
}

function elementsOf(message: NetlinkMessage): NftElement[] {
  const elements: NftElement[] = [];
  visitElements(message, (element) => elements.push(element));
  return elements;
}

describe('transaction: a transaction of nf_tables', () => {
  it('has the layout that the kernel expects', () => {
    const writer = new TransactionWriter(AF_INET, 'pw');
    writer.write('delete', 's', { key: Buffer.from([1, 2, 3]), data: { kind: 'drop' } });
    writer.write('add', 's', {
      key: Buffer.from([1, 2, 3]),
      keyEnd: Buffer.from([4, 5, 6, 7]),
      data: { kind: 'goto', chain: 'abc' },
    });
    writer.write('add', 's', { key: Buffer.from([9]), data: Buffer.from([8, 7]) });
    const packed = writer.finish();
    numberMessages(packed, 0x11);
    // The expected bytes are little-endian. Big-endian machines only run the round trip.
    if (u32(1)[0] !== 1) return;
    const expected = [
      // nlmsghdr: BATCH_BEGIN, NLM_F_REQUEST; nfgenmsg: NFNL_SUBSYS_NFTABLES.
      '14000000 1000 0100 11000000 00000000',
      '0000000a',
      // DELSETELEM; nfgenmsg: AF_INET; LIST_TABLE "pw", LIST_SET "s".
      '38000000 0e0a 0100 12000000 00000000',
      '02000000 0700 0100 70770000 0600 0200 73000000',
      // LIST_ELEMENTS { LIST_ELEM { KEY { DATA_VALUE } } }, without data.
      '1400 0380 1000 0180 0c00 0180 0700 0100 01020300',
      // NEWSETELEM, NLM_F_CREATE | NLM_F_ACK.
      '78000000 0c0a 0504 13000000 00000000',
      '02000000 0700 0100 70770000 0600 0200 73000000',
      '5400 0380',
      // KEY, KEY_END, DATA { DATA_VERDICT { VERDICT_CODE NFT_GOTO, VERDICT_CHAIN "abc" } }.
      '3400 0180 0c00 0180 0700 0100 01020300 0c00 0a80 0800 0100 04050607',
      '1800 0280 1400 0280 0800 0100 fffffffc 0800 0200 61626300',
      '1c00 0180 0c00 0180 0500 0100 09000000 0c00 0280 0600 0100 08070000',
      // BATCH_END.
      '14000000 1100 0100 14000000 00000000 0000000a',
    ];
    assert.equal(packed.bytes.toString('hex'), expected.join('').replaceAll(' ', ''));
  });

  it('contains all elements in order', () => {
    checkProperty(
      fc.property(transactions, (list) => {
        const messages = readMessages(write(list).packed.bytes);
        const [begin, ...inner] = messages;
        const end = inner.pop();
        assert.deepEqual([begin?.type, end?.type], [16, 17]);
        const read: Written[] = inner.flatMap((message) => {
          assert(message.type === NEWSETELEM || message.type === DELSETELEM);
          const action = message.type === NEWSETELEM ? 'add' : 'delete';
          const set = message.payload.toString('latin1', 16, message.payload.indexOf(0, 16));
          return elementsOf(message).map((element) => ({ action, set, element }));
        });
        assert.deepEqual(read, list.map(asSent));
        assert.deepEqual(
          messages.map(({ flags }) => (flags & NLM_F_ACK) !== 0),
          messages.map((message) => message === inner.at(-1)),
        );
      }),
    );
  });

  it('merges elements into lists of at most 16-bit length', () => {
    const key = Buffer.alloc(64);
    const { packed } = write(Array(5000).fill({ action: 'add', set: 'a', element: { key } }));
    const inner = readMessages(packed.bytes).slice(1, -1);
    assert.equal(inner.flatMap(elementsOf).length, 5000);
    for (const { payload } of inner) assert(payload.length < 0xffff);
    assert.equal(inner.length, Math.ceil((5000 * 76) / 64_000));
    assert.equal(packed.starts.length, inner.length + 2);
  });

  it('finds the element at an offset', () => {
    checkProperty(
      fc.property(transactions, (list) => {
        const { writer, packed } = write(list);
        let position = 0;
        for (const [index, start] of packed.starts.entries()) {
          const message = packed.bytes.subarray(start, packed.starts[index + 1]);
          const isFrame = index === 0 || index === packed.starts.length - 1;
          const count = isFrame ? 0 : elementsIn(message);
          if (count === 0) {
            assert.equal(writer.refusedElements(index, 0), undefined);
            continue;
          }
          assert.deepEqual(writer.refusedElements(index, undefined), {
            first: position,
            refused: undefined,
          });
          for (let offset = 0; offset < message.length; offset++) {
            const started = count - elementsIn(message, offset);
            const refused = started === 0 ? undefined : position + started - 1;
            assert.deepEqual(writer.refusedElements(index, offset), { first: position, refused });
          }
          position += count;
        }
        assert.equal(position, list.length);
      }),
    );
  });

  it('throws for names and values that the kernel would refuse or truncate', () => {
    const writer = new TransactionWriter(AF_INET, 'pw');
    const key = Buffer.alloc(4);
    const long = 'x'.repeat(256);
    for (const name of ['', long, 'a\0b']) {
      assert.throws(() => new TransactionWriter(AF_INET, name), RangeError);
      assert.throws(() => writer.write('add', name, { key }), RangeError);
      const data: NftVerdict = { kind: 'goto', chain: name };
      assert.throws(() => writer.write('add', 's', { key, data }), RangeError);
      assert.throws(() => tableRequest({ family: AF_INET, name }), RangeError);
      assert.throws(() => setRequest({ family: AF_INET, name: 'pw' }, name), RangeError);
    }
    const big = Buffer.alloc(65);
    for (const bad of [{ key: big }, { key, keyEnd: big }, { key, data: big }]) {
      assert.throws(() => writer.write('add', 's', bad), RangeError);
    }
    const name = long.slice(1);
    const most = new TransactionWriter(AF_INET, name);
    const data: NftVerdict = { kind: 'goto', chain: name };
    for (let count = 0; count < 500; count++) {
      most.write('add', name, { key: Buffer.alloc(64), keyEnd: Buffer.alloc(64), data });
    }
    const inner = readMessages(most.finish().bytes).slice(1, -1);
    assert.equal(inner.flatMap(elementsOf).length, 500);
  });
});

describe('message: nf_tables messages', () => {
  it('encodes requests in the layout that the kernel expects', () => {
    if (u32(1)[0] !== 1) return;
    const table = { family: 10, name: 'pw' };
    const wire = [
      tablesRequest(),
      tableRequest(table),
      deleteTableRequest(table),
      chainsRequest(10),
      setRequest(table, 's'),
      elementsRequest(table, 's'),
    ].map(({ type, payload }) => [type, payload.toString('hex')]);
    const named = '0a000000' + '0700010070770000';
    assert.deepEqual(wire, [
      [0xa01, '00000000'],
      [0xa01, named],
      [0xa02, named],
      [0xa04, '0a000000'],
      [0xa0a, `${named}0600020073000000`],
      [0xa0d, `${named}0600020073000000`],
    ]);
  });

  it('ignores messages of another type', () => {
    const message = { type: 3, flags: 0, sequence: 1, portId: 0, payload: Buffer.alloc(0) };
    assert.equal(isElementsMessage(message), false);
    for (const read of [readTable, readSet, readNotification]) {
      assert.equal(read(message), undefined);
    }
    assert.equal(readChain(message, 'pw'), undefined);
    // NFT_MSG_TRACE
    assert.equal(readNotification({ ...message, type: 0xa11 }), undefined);
  });

  it('throws only MalformedMessage for invalid bytes', () => {
    const broken = fc
      .tuple(transactions, fc.nat(), fc.nat(), fc.nat(255))
      .map(([list, cut, at, byte]) => {
        const { packed } = write(list);
        const bytes = packed.bytes.subarray((packed.starts[1] ?? 0) + 16);
        bytes[at % bytes.length] = byte;
        return bytes.subarray(0, cut % (bytes.length + 1));
      });
    const random = fc.uint8Array({ maxLength: 100 }).map((array) => Buffer.from(array));
    const types = fc.constantFrom(0, 3, 6, 9, 12, 14, 15).map((type) => 0xa00 | type);
    checkProperty(
      fc.property(types, fc.oneof(broken, random), (type, payload) => {
        const message: NetlinkMessage = { type, flags: 0, sequence: 1, portId: 0, payload };
        for (const read of [
          () => elementsOf(message),
          () => genidOf(message),
          () => readTable(message),
          () => readChain(message, 'pw'),
          () => readSet(message),
          () => readNotification(message),
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
});

describe('socket-filter: a filter of port IDs', () => {
  it('drops only datagrams caused by these port IDs', () => {
    const ports = fc.array(fc.nat(0xffffffff), { maxLength: 255 });
    checkProperty(
      fc.property(ports, fc.nat(0xffffffff), fc.nat(), (list, other, pick) => {
        const port = list[pick % (list.length + 1)] ?? other;
        const datagram = Buffer.alloc(16);
        u32(port).copy(datagram, 12);
        assert.equal(run(portIdFilter(list), datagram) > 0, !list.includes(port));
      }),
    );
  });

  it('throws for more than 255 port IDs', () => {
    assert.throws(() => portIdFilter(Array(256).fill(1)), RangeError);
  });
});

/** The element as sent: deletes carry no data. */
function asSent({ action, set, element: { key, keyEnd, data } }: Written): Written {
  const element: NftElement = {
    key,
    ...(keyEnd === undefined ? {} : { keyEnd }),
    ...(data === undefined || action === 'delete' ? {} : { data }),
  };
  return { action, set, element };
}

/** Number of elements of a message that start after an offset. */
function elementsIn(message: Buffer, offset = 0): number {
  let count = 0;
  // nlmsghdr and nfgenmsg, table name, set name, header of the element list.
  let at = 20;
  at += padded(message.readUInt16LE(at));
  at += padded(message.readUInt16LE(at)) + 4;
  for (; at < message.length; at += padded(message.readUInt16LE(at))) {
    if (at > offset) count++;
  }
  return count;
}

function padded(length: number): number {
  return Math.ceil(length / 4) * 4;
}

/**
 * Interprets the classic BPF instructions of the filter.
 * @returns the number of bytes to accept.
 */
function run(program: Buffer, datagram: Buffer): number {
  let accumulator = 0;
  for (let at = 0; at < program.length; at += 8) {
    const code = program.readUInt16LE(at);
    const k = program.readUInt32LE(at + 4);
    if (code === 0x20) accumulator = datagram.readUInt32BE(k);
    else if (code === 0x15) at += 8 * (program[at + (accumulator === k ? 2 : 3)] ?? 0);
    else if (code === 0x06) return k;
    else throw new Error(`instruction ${code}`);
  }
  throw new Error('no return');
}
