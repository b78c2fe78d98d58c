import assert from 'node:assert/strict';
import { readResolvConf } from '../../dns/resolv-conf.ts';
import { formatResolver } from '../../dns/resolver-address.ts';

describe('readResolvConf', () => {
  for (const [what, text, expected] of [
    ['nothing', '', []],
    ['one', 'nameserver 192.0.2.1\n', ['192.0.2.1']],
    [
      'several among other things',
      '# a comment\nsearch example.com\nnameserver 192.0.2.1\n\toptions ndots:5\n nameserver\t2001:db8::1  \nnameserver fe80::1%eth0',
      ['192.0.2.1', '2001:db8::1', 'fe80::1%eth0'],
    ],
    ['comments', ';nameserver 192.0.2.1\n#nameserver 192.0.2.2\n', []],
    ['what is no address', 'nameserver\nnameserver dns.example\nnameservers 192.0.2.1\n', []],
    // What it calls an address is compared with those that the server has, lest it ask itself.
    ['other names of an address', 'nameserver 2001:DB8:0::1\n', ['2001:db8::1']],
    ['the host', 'nameserver 0.0.0.0\nnameserver ::\n', ['127.0.0.1', '::1']],
    ['ports', 'nameserver 192.0.2.1:5353\nnameserver [::1]:54\n', ['192.0.2.1:5353', '[::1]:54']],
    ['lines as Windows ends them', 'nameserver 192.0.2.1\r\n', ['192.0.2.1']],
  ] as const) {
    it(`finds the resolvers: ${what}`, () => {
      assert.deepEqual(readResolvConf(text).map(formatResolver), expected);
    });
  }
});
