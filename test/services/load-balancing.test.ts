import assert from 'node:assert/strict';
import { ALL_PORT_FEATURES } from '../../api/all-ports.ts';
import type { Service } from '../../api/objects.ts';
import { servedPorts } from '../../services/served-ports.ts';
import { service } from '../fixtures.ts';

const FIELD = 'metadata.annotations["portwide.dev/load-balancing"]';

function served(loadBalancingAnnotation: string, fields: Partial<Service> = {}, features = {}) {
  const object = service({ loadBalancingAnnotation, ...fields });
  const { ports, refusals, warnings } = servedPorts(object, { ...ALL_PORT_FEATURES, ...features });
  return {
    hashes: ports.map(({ consistentHash }) => consistentHash),
    refusals: refusals.map(({ reason, field, message }) => `${reason} ${field}: ${message}`),
    warnings,
  };
}

describe('annotation portwide.dev/load-balancing', () => {
  for (const [value, hash] of [
    ['consistent-hash', 'client-address'],
    [' consistent-hash\n', 'client-address'],
    ['consistent-hash-client-port', 'client-address-and-port'],
    ['random', undefined],
  ] as const) {
    it(`${JSON.stringify(value)} selects endpoints by ${hash ?? 'chance'}`, () => {
      assert.deepEqual(served(value), { hashes: [hash], refusals: [], warnings: [] });
      const allPorts = served(value, { portsAnnotation: 'all' });
      assert.deepEqual(allPorts, { hashes: [hash], refusals: [], warnings: [] });
    });
  }

  for (const value of ['', 'maglev', 'constructor', 'Consistent-Hash']) {
    it(`refuses ${JSON.stringify(value)}`, () => {
      const message = 'must be random, consistent-hash or consistent-hash-client-port';
      assert.deepEqual(served(value), {
        hashes: [],
        refusals: [`Annotation ${FIELD}: ${message}`],
        warnings: [],
      });
    });
  }

  it('refuses consistent hashing in a mode that cannot hash', () => {
    const features = { consistentHashProblem: 'mode m cannot hash' };
    assert.deepEqual(served('consistent-hash', {}, features), {
      hashes: [],
      refusals: [`LoadBalancing ${FIELD}: mode m cannot hash`],
      warnings: [],
    });
    assert.deepEqual(served('random', {}, features).refusals, []);
  });

  it('refuses consistent hashing together with ports owned by pods', () => {
    const owned = {
      ownedPortsAnnotation: '20000-20999/UDP',
      portsPerPodAnnotation: '100',
      portsAnnotation: '5060',
    };
    assert.deepEqual(served('consistent-hash', owned).refusals, [
      `LoadBalancing ${FIELD}: connections to ports owned by pods are not spread`,
    ]);
  });

  it('replaces session affinity by a hash of the address, and warns', () => {
    for (const value of ['consistent-hash', 'consistent-hash-client-port'])
      assert.deepEqual(served(value, { affinitySeconds: 60 }), {
        hashes: ['client-address'],
        refusals: [],
        warnings: [
          'spec.sessionAffinity: ClientIP is replaced by consistent hashing of the client address',
        ],
      });
  });
});
