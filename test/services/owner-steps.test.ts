import assert from 'node:assert/strict';
import fc from 'fast-check';
import { isSameOwner, ownerPairs, type SliceOwner } from '../../endpoints/slice-owners.ts';
import { nextStep } from '../../services/owner-steps.ts';
import { ownerEndpoints } from '../../services/resolve-route.ts';
import type { OwnedSlices, Route } from '../../services/route.ts';
import { route } from '../fixtures.ts';

function owning(owners: readonly SliceOwner[], fields: Partial<OwnedSlices> = {}): Route {
  const owned: OwnedSlices = {
    ranges: [{ protocol: 'UDP', from: 1000, to: 1999 }],
    portsPerPod: 1,
    owners,
    udpVip: '10.96.0.10',
    priority: 'a',
    taken: new Map(),
    ...fields,
  };
  return route({
    match: { kind: 'ranges', ranges: owned.ranges },
    ...ownerEndpoints(owners),
    owned,
  });
}
const owner = (ordinal: number, third = 0): SliceOwner => ({
  ordinal,
  address: `10.244.${third}.${ordinal}`,
  serves: true,
  node: 'other',
});
const manyOwners = (count: number, third = 0) =>
  Array.from({ length: count }, (_, ordinal) => owner(ordinal, third));
const changes = (before: Route | undefined, after: Route) =>
  [...ownerPairs(before?.owned?.owners ?? [], after.owned?.owners ?? [])].filter(
    ([old, now]) => !isSameOwner(old, now),
  ).length;

describe('owner-steps: a change of many owners', () => {
  const owners = fc
    .uniqueArray(
      fc.record({
        ordinal: fc.nat(40),
        address: fc.nat(60).map((last) => `10.244.0.${last}`),
        serves: fc.boolean(),
        node: fc.constantFrom('this' as const, 'other' as const),
      }),
      { selector: ({ ordinal }) => ordinal, maxLength: 40 },
    )
    .map((all) => all.sort((a, b) => a.ordinal - b.ordinal));

  it('reaches the wanted Route in steps of so many owners, each a Route of old and new owners', () => {
    fc.assert(
      fc.property(fc.option(owners), owners, fc.integer({ min: 1, max: 10 }), (old, now, limit) => {
        const wanted = owning(now);
        const atMost = Math.max(limit, Math.ceil(now.length / 16));
        let current = old === null ? undefined : owning(old);
        for (let step = 0; current !== wanted; step++) {
          const next = nextStep(current, wanted, limit);
          assert.ok(changes(current, next) <= atMost);
          assert.ok(step <= 40);
          assert.deepEqual(next, owning(next.owned?.owners ?? []));
          const ordinals = next.owned?.owners.map(({ ordinal }) => ordinal) ?? [];
          assert.deepEqual(
            ordinals,
            [...new Set(ordinals)].sort((a, b) => a - b),
          );
          current = next;
        }
      }),
    );
  });

  it('has 16 steps at most, because each costs a look at all owners', () => {
    const wanted = owning(manyOwners(160, 1));
    let current = owning(manyOwners(160));
    let steps = 0;
    for (; current !== wanted; steps++) current = nextStep(current, wanted, 2);
    assert.equal(steps, 16);
  });

  it('begins with owners that leave, because another pod may get their address', () => {
    const before = manyOwners(10);
    // Each has the ordinal of another one, which the writer of EndpointSlices decides.
    const swapped = before
      .slice(0, 9)
      .map(({ ordinal }) => ({ ...owner(8 - ordinal), ordinal, serves: false }));
    const next = nextStep(owning(before), owning(swapped), 2);
    assert.deepEqual(next.owned?.owners, [...swapped.slice(0, 1), ...before.slice(1, 9)]);
  });

  it('is one step if other things change too, or other ports', () => {
    const before = owning(manyOwners(10));
    const taken = new Map([['10.96.0.10', [{ protocol: 'UDP' as const, from: 1001, to: 1001 }]]]);
    for (const wanted of [
      owning(manyOwners(10, 1), { portsPerPod: 2 }),
      owning(manyOwners(10, 1), { taken }),
      { ...owning(manyOwners(10, 1)), externalIPs: ['192.0.2.1'] },
      route({ match: { kind: 'all' } }),
    ])
      assert.equal(nextStep(before, wanted, 2), wanted);
  });
});
