import assert from 'node:assert/strict';
import fc from 'fast-check';
import { align, encodeAttributes, readAttributes } from '../../../netlink/core/attribute.ts';
import { MalformedMessage } from '../../../netlink/core/error.ts';
import { readU16 } from '../../../netlink/core/host-order.ts';
import { checkProperty } from '../property.ts';

const flat = fc.uniqueArray(
  fc.record({
    type: fc.nat(0x3fff),
    value: fc.uint8Array({ maxLength: 40 }).map((array) => Buffer.from(array)),
  }),
  { selector: ({ type }) => type },
);

describe('attribute: netlink attributes', () => {
  it('decodes encoded values unchanged', () => {
    checkProperty(
      fc.property(flat, (attributes) => {
        const read = readAttributes(encodeAttributes(attributes), 0);
        assert.deepEqual(
          [...read],
          attributes.map(({ type, value }) => [type, value]),
        );
      }),
    );
  });

  it('pads nested attributes and sets NLA_F_NESTED', () => {
    checkProperty(
      fc.property(flat, flat, (inner, outer) => {
        const encoded = encodeAttributes([{ type: 5, value: inner }, ...outer]);
        assert.equal(encoded.length, align(encoded.length));
        assert.equal(readU16(encoded, 2), 0x8005);
        const nested = readAttributes(encoded, 0, readU16(encoded, 0)).get(5);
        assert(nested !== undefined);
        assert.deepEqual(nested, encodeAttributes(inner));
      }),
    );
  });

  it('throws only MalformedMessage for invalid bytes', () => {
    checkProperty(
      fc.property(fc.uint8Array({ maxLength: 100 }), fc.nat(120), (random, end) => {
        try {
          readAttributes(Buffer.from(random), 0, end);
        } catch (error) {
          assert(error instanceof MalformedMessage, String(error));
        }
      }),
    );
  });

  it('throws for an attribute longer than 16 bits allow', () => {
    const big = { type: 1, value: Buffer.alloc(0x10000) };
    assert.throws(() => encodeAttributes([big]), RangeError);
  });
});
