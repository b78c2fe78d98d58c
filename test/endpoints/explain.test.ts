import assert from 'node:assert/strict';
import fc from 'fast-check';
import { explainEndpoints } from '../../endpoints/explain.ts';
import { candidatesForPort, type EndpointPolicy, selectEndpoints } from '../../endpoints/select.ts';
import { endpoint, slice } from '../fixtures.ts';

const NODE = { name: 'node-a', zone: 'zone-1' };
const BOTH: EndpointPolicy = { usesCluster: true, usesLocal: true };
const OTHER = { nodeName: 'node-b' };
const DRAINING = { ready: false, serving: true, terminating: true };
const DEAD = { ready: false, serving: false, terminating: true };
const NOT_READY = { ready: false, serving: false, terminating: false };

type Fields = Parameters<typeof endpoint>[1];

function explain(endpoints: readonly Fields[], policy: Partial<EndpointPolicy> = {}) {
  const all = endpoints.map((fields, index) => endpoint(`10.0.0.${index + 1}`, fields));
  const candidates = candidatesForPort([slice(all)], 'IPv4', '', 'TCP');
  return explainEndpoints(candidates, { ...BOTH, ...policy }, NODE);
}

describe('explain: why an endpoint is used or not', () => {
  const cases: [title: string, Fields[], cluster: string[], local: string[]][] = [
    ['ready', [{}], ['+ready'], ['+ready']],
    ['ready on another node', [OTHER], ['+ready'], ['-on another node']],
    ['not ready', [NOT_READY, {}], ['-not ready', '+ready'], ['-not ready', '+ready']],
    [
      'terminating beside a ready one',
      [DRAINING, {}],
      ['-terminating, and another endpoint is ready', '+ready'],
      ['-terminating, and another endpoint is ready', '+ready'],
    ],
    [
      'terminating, and nothing is ready',
      [DRAINING, DEAD],
      ['+terminating, and no endpoint is ready', '-terminating and not serving'],
      ['+terminating, and no endpoint is ready', '-terminating and not serving'],
    ],
    [
      'hinted for another zone',
      [{ hintedZones: ['zone-2'] }, { hintedZones: ['zone-1'] }],
      ['-hinted for another zone', '+ready'],
      ['+ready', '+ready'],
    ],
    [
      'hinted for another node',
      [{ hintedNodes: ['node-b'] }, { hintedNodes: ['node-a'] }],
      ['-hinted for another node', '+ready'],
      ['+ready', '+ready'],
    ],
  ];
  for (const [title, endpoints, cluster, local] of cases) {
    it(`names the reason: ${title}`, () => {
      const text = ({ used, reason }: { used: boolean; reason: string }) =>
        `${used ? '+' : '-'}${reason}`;
      const explained = explain(endpoints);
      assert.deepEqual(
        explained.map((each) => text(each.cluster)),
        cluster,
      );
      assert.deepEqual(
        explained.map((each) => text(each.local)),
        local,
      );
    });
  }

  it('says that a traffic policy is not in use', () => {
    const [only] = explain([{}], { usesCluster: false });
    assert.deepEqual(only?.cluster, { used: false, reason: 'traffic policy not in use' });
    assert.deepEqual(only?.local, { used: true, reason: 'ready' });
  });

  it('agrees with the selection for all endpoints, and gives reasons that fit', () => {
    const fields = fc.record({
      ready: fc.boolean(),
      serving: fc.boolean(),
      terminating: fc.boolean(),
      nodeName: fc.constantFrom('node-a', 'node-b', undefined),
      zone: fc.constantFrom('zone-1', 'zone-2', undefined),
      hintedZones: fc.constantFrom(undefined, ['zone-1'], ['zone-2'], ['zone-1', 'zone-2']),
      hintedNodes: fc.constantFrom(undefined, ['node-a'], ['node-b']),
    });
    const policies = fc.record({
      usesCluster: fc.boolean(),
      usesLocal: fc.boolean(),
    });
    fc.assert(
      fc.property(fc.array(fields, { maxLength: 6 }), policies, (endpoints, policy) => {
        const all = endpoints.map((each, index) => endpoint(`10.0.0.${index + 1}`, each));
        const candidates = candidatesForPort([slice(all)], 'IPv4', '', 'TCP');
        const selected = selectEndpoints(candidates, policy, NODE);
        const explained = explainEndpoints(candidates, policy, NODE);
        for (const set of ['cluster', 'local'] as const) {
          const used = explained.filter((each) => each[set].used);
          assert.deepEqual(
            used.map(({ endpoint: { address } }) => address),
            selected[set].map(({ address }) => address),
          );
          for (const { endpoint: each, [set]: decision } of explained) {
            const { reason } = decision;
            const isPositive = ['ready', 'terminating, and no endpoint is ready'].includes(reason);
            assert.equal(isPositive, decision.used, reason);
            if (reason.startsWith('hinted')) assert.ok(each.ready && set === 'cluster');
            if (reason === 'on another node') assert.notEqual(each.nodeName, NODE.name);
            if (reason === 'not ready') assert.ok(!each.ready && !each.terminating);
          }
        }
      }),
      { numRuns: 500, seed: 16 },
    );
  });
});
