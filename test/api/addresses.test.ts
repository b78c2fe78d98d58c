import assert from 'node:assert/strict';
import {
  canonicalAddress,
  canonicalCidr,
  cidrContains,
  isLinkLocal,
  lastByte,
  specialRange,
} from '../../api/addresses.ts';

describe('addresses', () => {
  for (const [text, expected] of [
    ['10.0.0.1', '10.0.0.1'],
    ['010.0.0.1', undefined],
    ['10.1', undefined],
    ['0x0a.0.0.1', undefined],
    ['FD00:0:0::1', 'fd00::1'],
    ['::ffff:10.0.0.1', undefined],
    ['fe80::1%eth0', undefined],
    ['', undefined],
    ['10.0.0.1 -j ACCEPT', undefined],
  ] as const) {
    it(`reads ${JSON.stringify(text)} as ${expected}`, () => {
      assert.equal(canonicalAddress(text), expected);
    });
  }

  for (const [text, expected] of [
    ['10.1.2.3/8', '10.0.0.0/8'],
    ['0.0.0.0/0', '0.0.0.0/0'],
    ['fd00::1/64', 'fd00::/64'],
    ['10.0.0.0/33', undefined],
    ['10.0.0.0', undefined],
    ['10.0.0.0/8/8', undefined],
    ['fd00::/129', undefined],
    ['10.0.0.0/-1', undefined],
  ] as const) {
    it(`reads CIDR ${text} as ${expected}`, () => {
      assert.equal(canonicalCidr(text), expected);
    });
  }

  it('decides whether a CIDR contains an address of the same family', () => {
    assert.equal(cidrContains('10.0.0.0/8', '10.9.9.9'), true);
    assert.equal(cidrContains('10.0.0.0/8', '11.0.0.1'), false);
    assert.equal(cidrContains('0.0.0.0/0', 'fd00::1'), false);
    assert.equal(cidrContains('fd00::/8', 'fd12::1'), true);
  });

  it('finds the special range of an address, and none for an address with a similar prefix', () => {
    for (const [range, ...addresses] of [
      ['unspecified', '0.0.0.0', '::'],
      ['loopback', '127.0.0.53', '::1'],
      ['link-local', '169.254.0.1', 'fe80::1', 'febf::1'],
      ['multicast', '224.0.0.1', '239.255.255.255', 'ff02::1'],
      ['broadcast', '255.255.255.255'],
      [undefined, '0.0.0.1', '223.0.0.1', '240.0.0.1', 'fd00::1', 'fe8::1', 'fec0::1', 'ff0::1'],
    ] as const) {
      for (const address of addresses) assert.equal(specialRange(address), range, address);
    }
    assert.ok(!isLinkLocal('fe8::1'));
  });

  it('returns the last byte of an IPv4 or IPv6 address', () => {
    assert.equal(lastByte('10.0.0.255'), 255);
    assert.equal(lastByte('fd00::1:2f'), 0x2f);
  });
});
