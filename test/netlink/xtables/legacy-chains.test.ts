import assert from 'node:assert/strict';
import fc from 'fast-check';
import { MalformedMessage } from '../../../netlink/core/error.ts';
import { readChainNames } from '../../../netlink/xtables/legacy-chains.ts';

describe('legacy-chains: entries of an iptables-legacy table', () => {
  it('reads any bytes as names, or refuses them', () => {
    const bytes = fc.uint8Array({ maxLength: 600, size: 'max' });
    fc.assert(
      fc.property(bytes, fc.constantFrom('IPv4', 'IPv6'), (entries, family) => {
        try {
          for (const name of readChainNames(family, Buffer.from(entries)))
            assert.ok(name.length <= 30);
        } catch (error) {
          assert.ok(error instanceof MalformedMessage);
        }
      }),
    );
  });

  it('refuses an entry that does not end', () => {
    assert.throws(() => readChainNames('IPv4', Buffer.alloc(112)), MalformedMessage);
  });
});
