import assert from 'node:assert/strict';
import fc from 'fast-check';
import { REFUSAL_SETS, RefusalKeys } from '../../../status/traffic/refusal-keys.ts';
import { ServiceIndex } from '../../../status/traffic/service-index.ts';
import { route } from '../../fixtures.ts';
import { routeChanges } from './generated-changes.ts';

const ADDRESS = '0a60000a';

describe('RefusalKeys: the keys of the sets of VIPs and node ports', () => {
  const keysOf = async (keys: RefusalKeys) => {
    await keys.takeChanges();
    return Object.fromEntries(REFUSAL_SETS.map((set) => [set, [...keys.all(set)].sort()]));
  };

  it('name the served ports of a VIP whose Routes refuse nothing', async () => {
    const index = new ServiceIndex();
    const match = { kind: 'port', protocol: 'UDP', port: 53 } as const;
    index.replaceRoute(undefined, route({ id: 'dns', match, nodePort: 53 }, ['10.244.1.11']));
    assert.deepEqual(await keysOf(new RefusalKeys('IPv4', index, { mayBeTranslated: true })), {
      vips: [],
      'node-ports': [],
      'served-ports': [`${ADDRESS}1100000000350000`],
      'listed-vips': [ADDRESS],
    });
    assert.deepEqual(await keysOf(new RefusalKeys('IPv4', index, { mayBeTranslated: false })), {
      vips: [ADDRESS],
      'node-ports': ['1100000000350000'],
      'served-ports': [],
      'listed-vips': [],
    });
    assert.deepEqual(await keysOf(new RefusalKeys('IPv6', index, { mayBeTranslated: false })), {
      vips: [],
      'node-ports': [],
      'served-ports': [],
      'listed-vips': [],
    });
  });

  it('are after any changes as if computed from all Routes, and a change names what differs', async () => {
    const property = fc.asyncProperty(
      routeChanges,
      fc.boolean(),
      fc.nat(5),
      async (changes, mayBeTranslated, between) => {
        const index = new ServiceIndex();
        const keys = new RefusalKeys('IPv4', index, { mayBeTranslated });
        const known = new Map(REFUSAL_SETS.map((set) => [set, new Set<string>()]));
        for (const [number, { before, after }] of changes.entries()) {
          index.replaceRoute(before, after);
          if (number % (between + 1) !== 0) continue;
          for (const [set, { added, deleted }] of await keys.takeChanges()) {
            for (const key of deleted) assert.ok(known.get(set)?.delete(key));
            for (const key of added) {
              assert.ok(known.get(set)?.has(key) === false);
              known.get(set)?.add(key);
            }
          }
          for (const set of REFUSAL_SETS)
            assert.deepEqual([...keys.all(set)].sort(), [...(known.get(set) ?? [])].sort());
        }
        const anew = new RefusalKeys('IPv4', index, { mayBeTranslated });
        assert.deepEqual(await keysOf(keys), await keysOf(anew));
      },
    );
    await fc.assert(property, { seed: 20, numRuns: 500 });
  });
});
