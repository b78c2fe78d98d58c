import assert from 'node:assert/strict';
import { addressBytes } from '../../../netlink/core/address.ts';
import { QueuedResolvers, RESOLVER_TTL } from '../../../policy/enforce/queued-resolvers.ts';

const [ONE, TWO] = ['192.0.2.1', '192.0.2.2'] as const;

describe('queued-resolvers: resolvers in the set dns-resolvers', () => {
  const element = (address: string, timeoutMs = RESOLVER_TTL) => ({
    key: addressBytes(address),
    timeoutMs,
  });
  let now: number;
  let resolvers: QueuedResolvers;

  beforeEach(() => {
    now = 1000;
    resolvers = new QueuedResolvers(() => now);
  });

  it('renews elements, which an add alone would not, and removes former resolvers', () => {
    const operations = (elements: readonly object[], renewed: readonly object[]) => [
      { action: 'add', set: 'dns-resolvers', elements },
      { action: 'delete', set: 'dns-resolvers', elements },
      { action: 'add', set: 'dns-resolvers', elements: renewed },
    ];
    assert.deepEqual(resolvers.renew([ONE]), operations([element(ONE)], [element(ONE)]));
    assert.deepEqual(
      resolvers.renew([TWO]),
      operations([element(ONE), element(TWO)], [element(TWO)]),
    );
    assert.deepEqual(resolvers.renew([]), operations([element(TWO)], []));
    assert.deepEqual(resolvers.renew([]), operations([], []));
  });

  it('gives a new table the remaining timeouts', () => {
    assert.deepEqual(resolvers.elements(), []);
    resolvers.renew([ONE]);
    now += 500;
    assert.deepEqual(resolvers.elements(), [element(ONE, RESOLVER_TTL - 500)]);
    now += RESOLVER_TTL;
    assert.deepEqual(resolvers.elements(), []);
  });
});
