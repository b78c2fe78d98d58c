import assert from 'node:assert/strict';
import fc from 'fast-check';
import { readAck } from '../../../netlink/core/ack.ts';
import { encodeAttributes } from '../../../netlink/core/attribute.ts';
import { MalformedMessage, NetlinkError } from '../../../netlink/core/error.ts';
import { u32 } from '../../../netlink/core/host-order.ts';
import {
  encodeMessages,
  type NetlinkMessage,
  NLM_F_REQUEST,
  NLMSG_DONE,
  NLMSG_ERROR,
  readMessages,
} from '../../../netlink/core/message.ts';
import { checkProperty } from '../property.ts';

const bytes = fc.uint8Array({ maxLength: 64 }).map((array) => Buffer.from(array));
const request = fc.record({
  type: fc.integer({ min: 0, max: 0xffff }),
  flags: fc.integer({ min: 0, max: 0xffff }),
  payload: bytes,
});

describe('message: netlink messages', () => {
  it('decodes encoded values unchanged', () => {
    checkProperty(
      fc.property(fc.array(request), fc.integer({ min: 0, max: 0xffffffff }), (requests, first) => {
        assert.deepEqual(
          readMessages(encodeMessages(requests, first)),
          requests.map(({ type, flags, payload }, index) => ({
            type,
            flags: flags | NLM_F_REQUEST,
            sequence: (first + index) % 2 ** 32,
            portId: 0,
            payload,
          })),
        );
      }),
    );
  });

  it('encodes the layout that the kernel expects', () => {
    const encoded = encodeMessages([{ type: 0x102, flags: 0x300, payload: Buffer.from([7]) }], 9);
    // The expected bytes are little-endian. Big-endian machines only run the round trip.
    if (u32(1)[0] !== 1) return;
    assert.equal(encoded.toString('hex'), '1100000002010103090000000000000007000000');
  });

  it('throws only MalformedMessage for invalid bytes', () => {
    checkProperty(
      fc.property(fc.uint8Array({ maxLength: 200 }), (random) => {
        orMalformed(() => readMessages(Buffer.from(random)));
      }),
    );
  });

  it('decodes only complete messages of a truncated datagram', () => {
    checkProperty(
      fc.property(fc.array(request, { minLength: 1 }), fc.nat(), (requests, cut) => {
        const whole = encodeMessages(requests, 1);
        const part = whole.subarray(0, cut % whole.length);
        const read = orMalformed(() => readMessages(part)) ?? [];
        assert.deepEqual(read, readMessages(whole).slice(0, read.length));
      }),
    );
  });

  it('terminates for a message length near 2^32', () => {
    const encoded = encodeMessages([{ type: 1, payload: Buffer.alloc(0) }], 1);
    u32(0xfffffffe).copy(encoded);
    assert.throws(() => readMessages(encoded), MalformedMessage);
  });
});

describe('message: acks', () => {
  const original = Buffer.alloc(16);
  u32(36).copy(original);
  const words = encodeAttributes([
    { type: 1, value: Buffer.from('Device does not exist\0') },
    { type: 2, value: u32(24) },
  ]);
  const minusOne = u32(2 ** 32 - 1);
  const message = (type: number, flags: number, ...payload: Buffer[]): NetlinkMessage => ({
    type,
    flags,
    sequence: 1,
    portId: 0,
    payload: Buffer.concat(payload),
  });

  it('has errno 0 on success', () => {
    const ack = readAck(message(NLMSG_ERROR, 0x100, u32(0), original));
    assert.deepEqual(ack, { errno: 0, extendedAck: undefined });
  });

  it('has the extended ack of the kernel, with the request capped or not', () => {
    const expected = {
      errno: 1,
      extendedAck: { message: 'Device does not exist', offset: 24 },
    };
    const capped = message(NLMSG_ERROR, 0x300, minusOne, original, words);
    const whole = message(NLMSG_ERROR, 0x200, minusOne, original, Buffer.alloc(20), words);
    const done = message(NLMSG_DONE, 0x202, minusOne, words);
    for (const each of [capped, whole, done]) assert.deepEqual(readAck(each), expected);
  });

  it('accepts NLMSG_DONE without an error number', () => {
    assert.equal(readAck(message(NLMSG_DONE, 2)).errno, 0);
  });

  it('throws only MalformedMessage for an invalid ack', () => {
    const types = fc.constantFrom(NLMSG_ERROR, NLMSG_DONE);
    checkProperty(
      fc.property(types, fc.nat(0xffff), bytes, (type, flags, payload) => {
        orMalformed(() => readAck(message(type, flags, payload)));
      }),
    );
  });

  it('becomes a NetlinkError with name, number and message text', () => {
    const ack = { message: 'Device does not exist', offset: undefined };
    const error = new NetlinkError('netlink message 16', 19, ack);
    assert.equal(error.message, 'netlink message 16: ENODEV (Device does not exist)');
    assert.equal(error.code, 'ENODEV');
    assert.equal(error.errno, 19);
    assert.equal(new NetlinkError('x', 95).code, 'EOPNOTSUPP');
    assert.equal(new NetlinkError('x', 11).code, 'EAGAIN');
    assert.equal(new NetlinkError('x', 85).code, 'ERESTART');
    assert.equal(new NetlinkError('x', 9999).code, 'errno 9999');
  });
});

/** The result of `read`; undefined if it throws a MalformedMessage. */
function orMalformed<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch (error) {
    assert(error instanceof MalformedMessage, String(error));
    return undefined;
  }
}
