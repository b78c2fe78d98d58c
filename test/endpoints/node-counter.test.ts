import assert from 'node:assert/strict';
import { NodeCounter } from '../../endpoints/node-counter.ts';
import { endpoint, service, slice } from '../fixtures.ts';

describe('node-counter: number of nodes', () => {
  const on = (...nodes: readonly (string | undefined)[]) =>
    nodes.map((nodeName, index) => endpoint(`10.0.0.${index}`, { nodeName }));

  it('counts each node of an endpoint once', () => {
    const counter = new NodeCounter();
    const counts: number[] = [];
    const counted = (change: () => void) => {
      change();
      counts.push(counter.nodes);
    };
    const [one, other] = ['default/one', 'default/other'];
    counted(() => counter.upsert(service()));
    counted(() => counter.upsert(slice(on('a', 'b', 'b', undefined), { key: one })));
    counted(() => counter.upsert(slice(on('b', 'c'), { key: other })));
    counted(() => counter.upsert(slice(on('b'), { key: one })));
    counted(() => counter.remove('Service', one));
    counted(() => counter.remove('EndpointSlice', one));
    counted(() => counter.remove('EndpointSlice', one));
    counted(() => counter.upsert(slice([], { key: other })));
    assert.deepEqual(counts, [0, 2, 3, 2, 2, 2, 2, 0]);
  });
});
