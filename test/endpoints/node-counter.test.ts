import assert from 'node:assert/strict';
import { NodeCounter } from '../../endpoints/node-counter.ts';
import { endpoint, service, slice } from '../fixtures.ts';

describe('node-census: the count of nodes', () => {
  const on = (...nodes: readonly (string | undefined)[]) =>
    nodes.map((nodeName, index) => endpoint(`10.0.0.${index}`, { nodeName }));

  it('follows the nodes of all endpoints, each once', () => {
    const census = new NodeCounter();
    const counts: number[] = [];
    const counted = (change: () => void) => {
      change();
      counts.push(census.nodes);
    };
    const [one, other] = ['default/one', 'default/other'];
    counted(() => census.upsert(service()));
    counted(() => census.upsert(slice(on('a', 'b', 'b', undefined), { key: one })));
    counted(() => census.upsert(slice(on('b', 'c'), { key: other })));
    counted(() => census.upsert(slice(on('b'), { key: one })));
    counted(() => census.remove('Service', one));
    counted(() => census.remove('EndpointSlice', one));
    counted(() => census.remove('EndpointSlice', one));
    counted(() => census.upsert(slice([], { key: other })));
    assert.deepEqual(counts, [0, 2, 3, 2, 2, 2, 2, 0]);
  });
});
