import assert from 'node:assert/strict';
import type { Route } from '../../services/route.ts';
import { localhostNodePort } from '../../traffic/localhost-node-port.ts';
import { route } from '../fixtures.ts';

const served = (fields: Partial<Route>, addresses: readonly string[] = ['10.0.0.1']) =>
  localhostNodePort(route({ nodePort: 30_080, ...fields }, addresses));

describe('localhost-node-port: node ports on localhost', () => {
  it('returns the endpoints of the node port and the session affinity timeout', () => {
    const cluster = served({ affinitySeconds: 60 }, ['10.0.0.1', '10.0.0.2']);
    assert.equal(cluster?.port, 30_080);
    assert.equal(cluster.affinitySeconds, 60);
    assert.deepEqual(cluster.endpoints, [
      { address: '10.0.0.1', port: 8080 },
      { address: '10.0.0.2', port: 8080 },
    ]);
  });

  it('returns the endpoint of the loopback address if client addresses are hashed', () => {
    const addresses = ['10.0.0.1', '10.0.0.2', '10.0.0.3'];
    const hashed = served({ consistentHash: 'client-address' }, addresses)?.endpoints;
    assert.equal(hashed?.length, 1);
    const others = addresses.filter((address) => address !== hashed?.[0]?.address);
    const rest = [hashed?.[0]?.address ?? '', ...others.slice(1)].sort();
    assert.deepEqual(served({ consistentHash: 'client-address' }, rest)?.endpoints, hashed);
    const byPort = served({ consistentHash: 'client-address-and-port' }, addresses);
    assert.equal(byPort?.endpoints.length, 3);
  });

  it('returns only endpoints of this node with externalTrafficPolicy Local', () => {
    const own = { address: '10.0.0.2', port: 8080 };
    const local = { externalLocal: true, localEndpoints: [own] };
    assert.deepEqual(served(local)?.endpoints, [own]);
    assert.equal(served({ externalLocal: true }), undefined);
  });

  it('returns undefined without endpoints, without a node port, and for UDP and SCTP', () => {
    assert.equal(served({}, []), undefined);
    assert.equal(served({ nodePort: 0 }), undefined);
    for (const protocol of ['UDP', 'SCTP'] as const) {
      assert.equal(served({ match: { kind: 'port', protocol, port: 53 } }), undefined);
    }
  });
});
