import assert from 'node:assert/strict';
import { AgentEvents } from '../../agent/events.ts';
import { service } from '../fixtures.ts';

describe('events: AgentEvents.refusals', () => {
  it('records an Event per refusal and warning, per node if only the node has the problem', () => {
    const recorded: unknown[] = [];
    const events = {
      normal: assert.fail,
      warning: (regarding: object, reason: string, note: string) =>
        recorded.push(['this node', regarding, reason, note]),
      sharedWarning: (regarding: object, reason: string, note: string) =>
        recorded.push(['all nodes', regarding, reason, note]),
    };
    const refusal = {
      serviceKey: 'a/b',
      reason: 'Overlap',
      field: 'spec.x',
      message: 'no',
    } as const;
    const table = { service: (key: string) => service({ key, uid: `uid of ${key}` }) };
    new AgentEvents(events, 'node-a', table).refusals({
      raised: [refusal, { ...refusal, reason: 'NodeAddress' }],
      warnings: [
        { serviceKey: 'c/d', message: 'spec.y: beware' },
        { serviceKey: 'c/d', isOfThisNode: true, message: 'spec.z: beware' },
      ],
    });
    const ref = (namespace: string, name: string) => ({
      apiVersion: 'v1',
      kind: 'Service',
      namespace,
      name,
      uid: `uid of ${namespace}/${name}`,
    });
    assert.deepEqual(recorded, [
      ['all nodes', ref('a', 'b'), 'RefusedOverlap', 'spec.x: no'],
      ['this node', ref('a', 'b'), 'RefusedNodeAddress', 'on node node-a: spec.x: no'],
      ['all nodes', ref('c', 'd'), 'ServedWithWarning', 'spec.y: beware'],
      ['this node', ref('c', 'd'), 'ServedWithWarning', 'on node node-a: spec.z: beware'],
    ]);
  });
});
