import assert from 'node:assert/strict';
import fc from 'fast-check';
import ipaddr from 'ipaddr.js';
import { canonicalAddress } from '../../../api/addresses.ts';
import { addressBytes, addressFormatter, writeAddress } from '../../../netlink/core/address.ts';
import { checkProperty } from '../property.ts';

const address = fc
  .oneof(fc.ipV4(), fc.ipV6())
  .map(canonicalAddress)
  .filter((text) => text !== undefined);

describe('address: IP addresses in network order', () => {
  it('encodes the same bytes as ipaddr.js', () => {
    checkProperty(
      fc.property(address, (text) => {
        assert.deepEqual([...addressBytes(text)], ipaddr.parse(text).toByteArray());
      }),
    );
  });

  it('writes only the bytes of the address', () => {
    checkProperty(
      fc.property(address, (text) => {
        const bytes = Buffer.alloc(24, 0xee);
        const end = writeAddress(bytes, text, 3);
        assert.equal(addressFormatter()(bytes, 3, end), text);
        const around = Buffer.concat([bytes.subarray(0, 3), bytes.subarray(end)]);
        assert.ok(around.every((byte) => byte === 0xee));
      }),
    );
  });
});
