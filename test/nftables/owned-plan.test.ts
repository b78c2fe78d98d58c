import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { PortRange } from '../../api/ports.ts';
import type { Steps } from '../../api/steps.ts';
import { elementId, type MapElement } from '../../nftables/element.ts';
import { phaseSteps } from '../../nftables/phases.ts';
import { NftPlan } from '../../nftables/plan.ts';
import type { OwnedSlices, Route } from '../../services/route.ts';
import { route } from '../fixtures.ts';
import { textsOf } from './elements.ts';
import { modeOptions } from './options.ts';

const [VIP, OTHER_VIP] = ['10.96.0.20', '10.96.0.21'] as const;
const POD = '10.244.0.1';
const udp = (from: number, to: number): PortRange => ({ protocol: 'UDP', from, to });

function owning(id: string, clusterIP: string, fields: Partial<OwnedSlices> = {}): Route {
  const owned: OwnedSlices = {
    ranges: [udp(100, 109)],
    portsPerPod: 10,
    owners: [{ ordinal: 0, address: POD, serves: true, node: 'this' }],
    udpVip: clusterIP,
    priority: id,
    taken: new Map(),
    ...fields,
  };
  return route({ id, clusterIP, match: { kind: 'ranges', ranges: owned.ranges }, owned });
}
function planOf(...routes: readonly Route[]): NftPlan {
  const plan = new NftPlan(modeOptions());
  plan.update(routes, []);
  return plan;
}
/** The source that packets from ports of an owner get. */
function spoken(plan: NftPlan): string[] {
  const elements = [...plan.snapshot()].flatMap((part) => part.elements);
  return Object.entries(textsOf(elements))
    .filter(([map]) => map.startsWith('udp-owner-vips'))
    .flatMap(([, texts]) => texts ?? [])
    .sort();
}

function idOf(element: MapElement): string {
  return JSON.stringify([elementId(element), 'data' in element ? element.data : undefined]);
}

/** Runs a computation to its end. @returns its result with the number of its steps. */
function counted<T>(computation: Steps<T>): { readonly steps: number; readonly result: T } {
  for (let steps = 0; ; steps++) {
    const { done, value } = computation.next();
    if (done === true) return { steps, result: value };
  }
}

describe('plan: pods in two Services with owned ports', () => {
  it('speak for the older, in whatever order the Services are added', () => {
    const [a, b] = [owning('a', VIP), owning('b', OTHER_VIP, { ranges: [udp(105, 124)] })];
    for (const routes of [
      [a, b],
      [b, a],
    ]) {
      assert.deepEqual(spoken(planOf(...routes)), [
        `${POD} . 100-109 : ${VIP}`,
        `${POD} . 110-114 : ${OTHER_VIP}`,
      ]);
    }
    const plan = planOf(a, b);
    plan.update([], ['a']);
    assert.deepEqual(spoken(plan), [`${POD} . 105-114 : ${OTHER_VIP}`]);
  });

  it('speak for the younger from a port that a third Service lists on the VIP of the older', () => {
    const older = owning('a', VIP, { taken: new Map([[VIP, [udp(103, 103)]]]) });
    assert.deepEqual(spoken(planOf(older, owning('b', OTHER_VIP))), [
      `${POD} . 100-102 : ${VIP}`,
      `${POD} . 103 : ${OTHER_VIP}`,
      `${POD} . 104-109 : ${VIP}`,
    ]);
  });

  it('speak for the younger while the VIP of the older is refused', () => {
    const older = owning('a', VIP, { udpVip: undefined });
    assert.deepEqual(spoken(planOf(older, owning('b', OTHER_VIP))), [
      `${POD} . 100-109 : ${OTHER_VIP}`,
    ]);
  });
});

describe('plan: slices that one exact lookup finds', () => {
  const elementsOf = (fields: Partial<OwnedSlices>) => {
    const snapshot = [...planOf(owning('a', VIP, fields)).snapshot()];
    const texts = Object.entries(textsOf(snapshot.flatMap(({ elements }) => elements)));
    return Object.fromEntries(texts.filter(([map]) => /^(udp-owner|owned-[a-z]+s$)/.test(map)));
  };

  it('are single elements if they have one of some sizes and start at a multiple of it', () => {
    assert.deepEqual(elementsOf({ ranges: [udp(20_480, 21_503)], portsPerPod: 128 }), {
      'owned-vips': [VIP],
      'owned-addresses': [POD, VIP],
      'udp-owners-of-128': [`${VIP} . 20480 : ${POD}`],
      'udp-owner-vips-of-128': [`${POD} . 20480 : ${VIP}`],
      'udp-owner-ports-of-128': [`${POD} . 20480`],
    });
  });

  it('are ranges if they start elsewhere, have another size, or another Service has one of their ports', () => {
    const ranges = { 'udp-owners-20': 1, 'udp-owner-vips-1': 1, 'udp-owner-ports-1': 1 };
    const counts = (fields: Partial<OwnedSlices>, pattern: RegExp) =>
      Object.fromEntries(
        Object.entries(elementsOf(fields))
          .filter(([map]) => pattern.test(map))
          .map(([map, elements]) => [map, elements?.length]),
      );
    const all = /^udp-owner/;
    assert.deepEqual(counts({ ranges: [udp(20_000, 20_999)], portsPerPod: 128 }, all), ranges);
    assert.deepEqual(counts({ ranges: [udp(20_480, 21_503)], portsPerPod: 64 }, all), ranges);
    const taken = new Map([[VIP, [udp(20_500, 20_500)]]]);
    const cut = counts({ ranges: [udp(20_480, 21_503)], portsPerPod: 128, taken }, all);
    assert.deepEqual(cut, { 'udp-owners-20': 2, 'udp-owner-vips-1': 2, 'udp-owner-ports-1': 2 });
  });
});

describe('plan: a Service that no longer has owned ports', () => {
  it('is cleaned up from its addresses on, so that no packet finds some slices only', () => {
    for (const fields of [{}, { ranges: [udp(20_480, 21_503)], portsPerPod: 128 }]) {
      const plan = planOf(owning('a', VIP, fields));
      for (const _ of plan.snapshot());
      const { owned: _, ...spread } = owning('a', VIP, fields);
      plan.update([spread], []);
      const { cleanup } = counted(phaseSteps(plan.diff(), 'IPv4')).result;
      const maps = cleanup.deletes.map(({ map }) => map);
      assert.deepEqual(maps.slice(0, 2), ['owned-addresses', 'owned-addresses']);
      assert.equal(maps.slice(2).filter((map) => map.startsWith('udp-owner')).length, 3);
    }
  });
});

describe('plan: a Service with owned ports, and no owner yet', () => {
  const baseChains = (fields: Partial<OwnedSlices>) => {
    const plan = planOf(owning('a', VIP, { owners: [], ...fields }));
    for (const _ of plan.snapshot());
    const names = [...plan.chains()].map(({ name }) => name);
    return names.filter((name) => name.startsWith('owned-prerouting'));
  };

  it('has only the chains that its slices will need, so that no packet passes others', () => {
    for (const [ranges, portsPerPod, ...expected] of [
      [[udp(20_480, 21_503)], 128, 'owned-prerouting-of-128'],
      [[udp(20_000, 20_999)], 128, 'owned-prerouting'],
      [[udp(20_000, 20_999)], 100, 'owned-prerouting'],
      [
        [udp(20_480, 21_503), udp(22_000, 22_999)],
        128,
        'owned-prerouting',
        'owned-prerouting-of-128',
      ],
    ] as const)
      assert.deepEqual(baseChains({ ranges, portsPerPod }), expected, `${portsPerPod}`);
  });
});

describe('plan: changes of owners', () => {
  const owner = fc.record({
    ordinal: fc.nat(4),
    // Two with each last byte: these have the same chains.
    address: fc.nat(5).map((number) => `10.244.${number % 2}.${number >> 1}`),
    serves: fc.boolean(),
    node: fc.constantFrom('this' as const, 'other' as const),
  });
  const owners = fc
    .uniqueArray(owner, { selector: ({ ordinal }) => ordinal, maxLength: 5 })
    .map((all) => all.sort((a, b) => a.ordinal - b.ordinal));
  const tcp = { ...udp(20_000, 20_999), protocol: 'TCP' as const };
  const frame = fc.record({
    ranges: fc.subarray([udp(20_480, 21_503), udp(22_000, 22_639), tcp], { minLength: 1 }),
    portsPerPod: fc.constantFrom(100, 128),
    taken: fc.constantFrom(new Map(), new Map([[VIP, [udp(20_500, 20_610)]]])),
  });

  it('give what a plan from scratch has, whatever addresses and ports Services share', () => {
    const state = fc.record({ id: fc.constantFrom('a', 'b'), frame, owners });
    fc.assert(
      fc.property(fc.array(state, { minLength: 2, maxLength: 8 }), frame, (states, fixed) => {
        const plan = planOf();
        for (const _ of plan.snapshot());
        const elements = new Set<string>();
        const latest = new Map<string, Route>();
        for (const { id, frame: other, owners: all } of states) {
          // Mostly the owners change, and nothing else.
          const fields = { ...(id === 'a' && all.length === 5 ? other : fixed), owners: all };
          const next = owning(id, id === 'a' ? VIP : OTHER_VIP, fields);
          latest.set(id, next);
          plan.update([next], []);
          const { deletes, cleanup, adds } = plan.diff();
          for (const element of [...deletes, ...cleanup])
            assert.ok(elements.delete(idOf(element)), `absent: ${idOf(element)}`);
          for (const element of adds) {
            assert.ok(!elements.has(idOf(element)), `twice: ${idOf(element)}`);
            elements.add(idOf(element));
          }
          const wanted = [...planOf(...latest.values()).snapshot()].flatMap((part) =>
            part.elements.map(idOf),
          );
          assert.deepEqual([...elements].sort(), wanted.sort());
        }
      }),
      { numRuns: 300 },
    );
  });
});

describe('plan: a Service with many slices', () => {
  const COUNT = 1000;
  const media = (third: number) =>
    owning('media', VIP, {
      ranges: [udp(1000, 1000 + 2 * COUNT - 1)],
      portsPerPod: 2,
      owners: Array.from({ length: COUNT }, (_, ordinal) => ({
        ordinal,
        address: `10.244.${third + Math.floor(ordinal / 250)}.${ordinal % 250}`,
        serves: true,
        node: 'other',
      })),
    });
  it('is compared and ordered in steps of one slice or element', () => {
    const plan = planOf();
    for (const _ of plan.snapshot());
    plan.update([media(0)], []);
    const added = counted(plan.diffSteps());
    const { adds } = added.result;
    assert.ok(adds.length > 4 * COUNT);
    // Packets in and out of each slice, and each element.
    assert.ok(added.steps > 2 * COUNT + adds.length, `${added.steps}`);

    plan.update([media(100)], []);
    const moved = counted(plan.diffSteps());
    const { deletes, cleanup } = moved.result;
    assert.equal(deletes.length, COUNT);
    assert.ok(moved.steps > 2 * added.steps, `${moved.steps}`);
    const ordered = counted(phaseSteps(moved.result, 'IPv4'));
    assert.ok(ordered.steps > moved.result.adds.length + deletes.length, `${ordered.steps}`);
    assert.ok(cleanup.length > 2 * COUNT);
  });

  it('changes at the cost of the owners that change', () => {
    const plan = planOf(media(0));
    for (const _ of plan.snapshot());
    const before = media(0);
    const owners = before.owned?.owners.map((owner) =>
      owner.ordinal === 7 ? { ...owner, address: '10.244.200.1' } : owner,
    );
    plan.update([owning('media', VIP, { ...before.owned, owners: owners ?? [] })], []);
    const { steps, result } = counted(plan.diffSteps());
    assert.ok(steps < 100, `${steps}`);
    assert.ok(result.adds.length > 2, `${result.adds.length}`);
    assert.equal(result.deletes.length, 1);
  });

  it('is in many parts of a snapshot', () => {
    const parts = [...planOf(media(0)).snapshot()];
    const sizes = parts.map(({ elements }) => elements.length);
    assert.ok(parts.length > 2 * COUNT, `${parts.length}`);
    assert.ok(Math.max(...sizes) <= 256, `${Math.max(...sizes)}`);
    assert.equal(parts.filter(({ planned }) => planned !== undefined).length, 1);
  });
});
