import assert from 'node:assert/strict';
import { formatResolver, parseResolver } from '../../dns/resolver-address.ts';

describe('the address of a resolver', () => {
  for (const [text, address, port] of [
    ['192.0.2.1', '192.0.2.1', 53],
    ['192.0.2.1:5353', '192.0.2.1', 5353],
    ['2001:DB8:0::1', '2001:db8::1', 53],
    ['[2001:db8::1]', '2001:db8::1', 53],
    ['[2001:db8::1]:5353', '2001:db8::1', 5353],
    ['fe80::1%eth0', 'fe80::1%eth0', 53],
    ['[fe80::1%eth0]:5353', 'fe80::1%eth0', 5353],
    // The host itself.
    ['0.0.0.0:5353', '127.0.0.1', 5353],
    ['::', '::1', 53],
  ] as const) {
    it(`may be ${text}`, () => {
      const resolver = parseResolver(text) ?? assert.fail();
      assert.deepEqual(resolver, { address, port });
      assert.deepEqual(parseResolver(formatResolver(resolver)), resolver);
    });
  }

  for (const text of [
    '',
    'dns.example',
    '192.0.2.256',
    '192.0.2.1:',
    '192.0.2.1:0',
    '192.0.2.1:65536',
    '192.0.2.1:x',
    '[192.0.2.1]:53',
    '2001:db8::1:x',
    '[2001:db8::1',
    '[2001:db8::1]5353',
    '/etc/resolv.conf',
  ]) {
    it(`is not ${text || 'empty'}`, () => assert.equal(parseResolver(text), undefined));
  }
});
