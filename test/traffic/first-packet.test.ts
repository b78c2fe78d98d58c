import assert from 'node:assert/strict';
import { poolOf } from '../../traffic/first-packet.ts';
import { trafficPlan } from '../../traffic/plan.ts';
import { route } from '../fixtures.ts';

describe('first-packet: endpoints of one client', () => {
  const pod = { address: '10.244.0.9', isPod: true, isNode: false };
  const outside = { address: '192.0.2.50', isPod: false, isNode: false };
  const endpoint = { address: '10.244.0.1', port: 8080 };

  it('pods and the node get the endpoints of other clients while their own pool is empty', () => {
    const fields = { externalLocal: true, nodePort: 30_080, localEndpoints: [endpoint] };
    const poolsFor = (clusterEndpoints: readonly (typeof endpoint)[]) => {
      const { external } = trafficPlan(route({ ...fields, clusterEndpoints }), false);
      assert.ok(external);
      return [pod, outside].map((client) => poolOf(external, client).set);
    };
    assert.deepEqual(poolsFor([]), ['local', 'local']);
    assert.deepEqual(poolsFor([endpoint]), ['cluster', 'local']);
  });
});
