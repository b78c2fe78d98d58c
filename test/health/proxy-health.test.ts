import assert from 'node:assert/strict';
import fc from 'fast-check';
import { IP_FAMILIES, type IpFamily, type Node } from '../../api/objects.ts';
import { ProxyHealth } from '../../health/proxy-health.ts';

const START = Date.parse('2026-01-01T00:00:00Z');
/** As with a sync period of 30 s. */
const TIMEOUT = 60_000;

const NODE: Node = {
  kind: 'Node',
  key: 'node-a',
  name: 'node-a',
  labels: {},
  zone: undefined,
  podCIDRs: [],
  addresses: [],
  deleting: false,
  taints: [],
};

/** Health with a simulated clock; the wall clock can be set separately. */
function build({ needsNode = false } = {}) {
  let elapsed = 0;
  let wallStep = 0;
  const health = new ProxyHealth({
    timeout: TIMEOUT,
    needsNode,
    missingInputs: () => [],
    clock: { wall: () => new Date(START + elapsed + wallStep), elapsed: () => elapsed },
  });
  return {
    health,
    pass: (milliseconds: number) => {
      elapsed += milliseconds;
    },
    setWallClock: (step: number) => {
      wallStep += step;
    },
  };
}

/** One step: seconds that pass, or a call for a family. */
type Step = number | readonly ['queued' | 'updated', IpFamily];

/** Seconds since the start. */
const at = (date: Date | undefined) =>
  date === undefined ? undefined : (date.getTime() - START) / 1000;

function outcome(steps: readonly Step[]) {
  const { health, pass } = build();
  for (const step of steps) {
    if (typeof step === 'number') pass(step * 1000);
    else health[step[0]](step[1]);
  }
  const { healthy, lastUpdated, currentTime, status } = health.report();
  const families = [...status].map(([family, { healthy: well, lastUpdated: last }]) => [
    family,
    well,
    at(last),
  ]);
  return { healthy, lastUpdated: at(lastUpdated), currentTime: at(currentTime), families };
}

describe('proxy-health: health of the proxy', () => {
  const begun: Step[] = [
    ['updated', 'IPv4'],
    ['updated', 'IPv6'],
  ];
  for (const [title, steps, healthy, families] of [
    ['before begin', [3600], true, []],
    ['queued before begin', [['queued', 'IPv4'], 3600], true, []],
    ['begun, no sync yet', [...begun, 50], true, [true, true]],
    ['no changes for long', [...begun, 86_400], true, [true, true]],
    [
      'queued for less than the timeout',
      [...begun, ['queued', 'IPv4'], 59.999],
      true,
      [true, true],
    ],
    ['queued for the timeout', [...begun, ['queued', 'IPv4'], 60], false, [false, true]],
    [
      'the other family queued for the timeout',
      [...begun, ['queued', 'IPv6'], 60],
      false,
      [true, false],
    ],
    [
      'queued twice, counted from the first',
      [...begun, ['queued', 'IPv4'], 30, ['queued', 'IPv4'], 30],
      false,
      [false, true],
    ],
    [
      'only the other family synced',
      [...begun, ['queued', 'IPv4'], ['queued', 'IPv6'], 60, ['updated', 'IPv4']],
      false,
      [true, false],
    ],
    [
      'recovered',
      [...begun, ['queued', 'IPv4'], 90, ['updated', 'IPv4'], 3600],
      true,
      [true, true],
    ],
    [
      'queued, synced and queued, counted from the second',
      [...begun, ['queued', 'IPv4'], 40, ['updated', 'IPv4'], ['queued', 'IPv4'], 40],
      true,
      [true, true],
    ],
    ['one family only', [['updated', 'IPv6'], ['queued', 'IPv6'], 61], false, [false]],
  ] as const) {
    it(`is ${healthy ? 'healthy' : 'unhealthy'} when: ${title}`, () => {
      const report = outcome(steps as readonly Step[]);
      assert.equal(report.healthy, healthy);
      assert.deepEqual(
        report.families.map(([, well]) => well),
        families,
      );
    });
  }

  it('reports the last sync of each family and of any family', () => {
    const report = outcome([5, ['updated', 'IPv6'], 2, ['updated', 'IPv4'], 3]);
    assert.deepEqual(report, {
      healthy: true,
      lastUpdated: 7,
      currentTime: 10,
      families: [
        ['IPv4', true, 7],
        ['IPv6', true, 5],
      ],
    });
  });

  it('ignores steps of the wall clock', () => {
    const { health, pass, setWallClock } = build();
    health.updated('IPv4');
    health.queued('IPv4');
    setWallClock(86_400_000);
    assert.equal(health.report().healthy, true);
    setWallClock(-2 * 86_400_000);
    pass(TIMEOUT);
    assert.equal(health.report().healthy, false);
  });

  it('is unhealthy exactly while a change is older than the timeout', () => {
    const step = fc.oneof(
      fc.integer({ min: 0, max: 45 }),
      fc.tuple(
        fc.constantFrom('queued' as const, 'updated' as const),
        fc.constantFrom(...IP_FAMILIES),
      ),
    );
    fc.assert(
      fc.property(fc.array(step, { maxLength: 30 }), (steps) => {
        // Going back from the end: the age of the oldest change queued since the last sync.
        const late = IP_FAMILIES.filter((family) => {
          let age = 0;
          let oldest = 0;
          for (const each of steps.toReversed()) {
            if (typeof each === 'number') age += each;
            else if (each[1] !== family) continue;
            else if (each[0] === 'queued') oldest = Math.max(oldest, age);
            else return oldest * 1000 >= TIMEOUT;
          }
          return false;
        });
        const { healthy, families } = outcome(steps);
        assert.equal(healthy, late.length === 0);
        assert.deepEqual(
          families.filter(([, well]) => well === false).map(([family]) => family),
          late,
        );
      }),
      { seed: 20, numRuns: 500 },
    );
  });
});

describe('proxy-health: node eligibility', () => {
  const TAINT = 'ToBeDeletedByClusterAutoscaler';
  for (const [title, nodes, eligible] of [
    ['before a Node is known', [], undefined],
    ['no Node at all', [undefined], undefined],
    ['an ordinary Node', [NODE], true],
    ['tainted in any other way', [{ ...NODE, taints: ['node.kubernetes.io/not-ready'] }], true],
    ['about to be deleted', [{ ...NODE, taints: ['a', TAINT] }], false],
    ['the taint taken back', [{ ...NODE, taints: [TAINT] }, NODE], true],
    ['being deleted', [{ ...NODE, deleting: true }], false],
    ['deleted', [NODE, undefined], false],
    ['registered again', [NODE, undefined, NODE], true],
  ] as const) {
    for (const needsNode of [true, false]) {
      it(`reports eligibility with a Node ${needsNode ? 'required' : 'not required'}: ${title}`, () => {
        const { health } = build({ needsNode });
        for (const node of nodes) health.setNode(node);
        assert.equal(health.nodeEligible, eligible ?? !needsNode);
        assert.equal(health.report().healthy, true);
      });
    }
  }
});
