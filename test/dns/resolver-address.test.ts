import assert from 'node:assert/strict';
import { formatResolver, parseResolver, readResolvConf } from '../../dns/resolver-address.ts';

describe('resolver-address: parseResolver()', () => {
  for (const [text, address, port] of [
    ['192.0.2.1', '192.0.2.1', 53],
    ['192.0.2.1:5353', '192.0.2.1', 5353],
    ['2001:DB8:0::1', '2001:db8::1', 53],
    ['[2001:db8::1]', '2001:db8::1', 53],
    ['[2001:db8::1]:5353', '2001:db8::1', 5353],
    ['fe80::1%eth0', 'fe80::1%eth0', 53],
    ['[fe80::1%eth0]:5353', 'fe80::1%eth0', 5353],
    // The local host.
    ['0.0.0.0:5353', '127.0.0.1', 5353],
    ['::', '::1', 53],
  ] as const) {
    it(`accepts ${text}`, () => {
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
    it(`rejects ${text || 'empty text'}`, () => assert.equal(parseResolver(text), undefined));
  }
});

describe('resolver-address: readResolvConf', () => {
  for (const [what, text, expected] of [
    ['nothing', '', []],
    ['one', 'nameserver 192.0.2.1\n', ['192.0.2.1']],
    [
      'several among other lines',
      '# a comment\nsearch example.com\nnameserver 192.0.2.1\n\toptions ndots:5\n nameserver\t2001:db8::1  \nnameserver fe80::1%eth0',
      ['192.0.2.1', '2001:db8::1', 'fe80::1%eth0'],
    ],
    ['comments', ';nameserver 192.0.2.1\n#nameserver 192.0.2.2\n', []],
    [
      'values that are no address',
      'nameserver\nnameserver dns.example\nnameservers 192.0.2.1\n',
      [],
    ],
    // Canonical, because the address is compared with the server's own addresses to prevent a loop.
    ['unspecified addresses', 'nameserver 2001:DB8:0::1\n', ['2001:db8::1']],
    ['the host', 'nameserver 0.0.0.0\nnameserver ::\n', ['127.0.0.1', '::1']],
    ['ports', 'nameserver 192.0.2.1:5353\nnameserver [::1]:54\n', ['192.0.2.1:5353', '[::1]:54']],
    ['lines with CRLF', 'nameserver 192.0.2.1\r\n', ['192.0.2.1']],
  ] as const) {
    it(`finds the nameservers: ${what}`, () => {
      assert.deepEqual(readResolvConf(text).map(formatResolver), expected);
    });
  }
});
