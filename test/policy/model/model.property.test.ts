import assert from 'node:assert/strict';
import fc from 'fast-check';
import { familyOf } from '../../../api/addresses.ts';
import { IP_FAMILIES } from '../../../api/objects.ts';
import type { PolicyChange } from '../../../policy/compile/change.ts';
import { type Change, change, cluster, FLOWS, NAMES } from '../generated.ts';
import { assertApplied, contentOf, ModelHarness } from '../harness.ts';
import { HERE, type TestObject } from '../objects.ts';
import type { Flow, Verdict } from '../oracle.ts';

/** Batches of changes. */
const history = fc.array(fc.array(change, { minLength: 1, maxLength: 4 }), {
  maxLength: 6,
  size: 'max',
});

function feed(agent: ModelHarness, step: Change): void {
  if ('upsert' in step) agent.upsert(step.upsert);
  else agent.remove(step.remove.kind, step.remove.key);
}

type Verdicts = readonly Verdict[];

/** Verdicts of the applied rules on all connections, with the final nodes and FQDN addresses. */
function verdictsOf(agent: ModelHarness): Verdicts {
  const context = agent.packetContext();
  return FLOWS.map((flow) => agent.kernels[familyOf(flow.to)].evaluate(flow, context));
}

function textOf({ from, to, port, protocol }: Flow): string {
  return `${from} to ${to} ${protocol} ${port}`;
}

/** Lists the connections with different verdicts. */
function assertSame(actual: Verdicts, expected: Verdicts, when: string): void {
  const differing = FLOWS.filter((_, at) => actual[at] !== expected[at]);
  assert.deepEqual(differing.map(textOf), [], when);
}

/** Applies changes phase by phase, and compares the verdicts after each. */
function syncStepwise(agent: ModelHarness): PolicyChange[] {
  const changes = agent.applied.takeChanges();
  const each = (phase: 'prepare' | 'commit' | 'cleanup') => {
    for (const part of changes) agent.kernels[part.family][phase](part);
    return verdictsOf(agent);
  };
  const before = verdictsOf(agent);
  assertSame(each('prepare'), before, 'after prepare');
  const after = each('commit');
  assertSame(each('cleanup'), after, 'after cleanup');
  const clusterState = { objects: [...agent.objects.values()], names: agent.names };
  assertSame(
    after,
    FLOWS.map((flow) => agent.expected(flow, [HERE])),
    `after commit, with ${JSON.stringify(clusterState)}`,
  );
  return changes;
}

/**
 * Lookups in interval sets see a commit some milliseconds late. So a change of networks must not
 * depend on other changes of the same commit.
 */
function assertNoMixture(changes: readonly PolicyChange[]): void {
  for (const { prepare, remove, add, chains, cleanup } of changes) {
    const [ranges, others] = [[...remove, ...add].filter(({ set }) => set === 'networks'), chains];
    if (ranges.length === 0) continue;
    assert.equal(ranges.length, remove.length + add.length);
    assert.deepEqual([prepare, others, cleanup], [[], [], []]);
  }
}

describe('model.property: policy model', () => {
  it('compiles rules that agree with the oracle after every change', () => {
    fc.assert(
      fc.property(cluster, history, (objects: readonly TestObject[], steps) => {
        const agent = new ModelHarness(objects, NAMES);
        syncStepwise(agent);
        for (const step of steps) {
          for (const part of step) feed(agent, part);
          const changes = syncStepwise(agent);
          if (step.length === 1) assertNoMixture(changes);
        }
        assertApplied(agent);
      }),
      { seed: 7, numRuns: 60 },
    );
  });

  it('has the same state as a new model with the final objects', () => {
    fc.assert(
      fc.property(cluster, history, (objects, steps) => {
        const agent = new ModelHarness(objects, NAMES);
        for (const step of steps) {
          agent.sync();
          for (const part of step) feed(agent, part);
        }
        agent.sync();
        assertApplied(agent);
        const fresh = new ModelHarness([...agent.objects.values()].reverse(), NAMES);
        fresh.sync();
        for (const family of IP_FAMILIES) {
          assert.deepEqual(contentOf(agent, family), contentOf(fresh, family));
        }
        assert.deepEqual(agent.sync(), []);
      }),
      { seed: 8, numRuns: 300 },
    );
  });

  it('explains verdicts that agree with the oracle, for pods of all nodes', () => {
    fc.assert(
      fc.property(cluster, history, (objects, steps) => {
        const agent = new ModelHarness(objects, NAMES);
        for (const step of steps) {
          agent.sync();
          for (const part of step) feed(agent, part);
        }
        for (const flow of FLOWS) {
          if (flow.protocol === 'ICMP') continue;
          assert.equal(agent.explained(flow), agent.expected(flow), textOf(flow));
        }
        // explain() must not change the state.
        const asked = new ModelHarness(agent.objects.values(), NAMES);
        asked.sync();
        agent.sync();
        for (const family of IP_FAMILIES) {
          assert.deepEqual(contentOf(agent, family), contentOf(asked, family));
        }
      }),
      { seed: 9, numRuns: 30 },
    );
  });
});
