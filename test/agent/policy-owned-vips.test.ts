import assert from 'node:assert/strict';
import { ownedVipsSink } from '../../agent/policy-owned-vips.ts';
import { readObject } from '../../api/read-object.ts';
import { type ServiceFields, serviceManifest } from '../e2e/manifests.ts';

const OWNED = { 'portwide.dev/owned-ports': '20000-20999/UDP' };

describe('policy-owned-vips: VIPs of Services with owned ports, for network policy', () => {
  let vips: string[] | undefined;
  const sink = ownedVipsSink((all) => {
    vips = [...all].sort();
  });
  const upsert = (name: string, fields: ServiceFields) => {
    const object = readObject(serviceManifest(name, fields), ['Service']);
    assert.ok(object !== undefined);
    sink.upsert(object);
  };

  it('follows the Services', () => {
    upsert('web', { spec: { clusterIPs: ['10.96.0.1'] } });
    assert.equal(vips, undefined, 'a Service without owned ports changes nothing');
    upsert('media', {
      annotations: OWNED,
      ingress: [
        { ip: '203.0.113.1', ipMode: 'VIP' },
        { ip: '203.0.113.2', ipMode: 'Proxy' },
      ],
      spec: { type: 'LoadBalancer', clusterIPs: ['10.96.0.2'], externalIPs: ['203.0.113.3'] },
    });
    assert.deepEqual(vips, ['10.96.0.2', '203.0.113.1']);
    upsert('turn', { annotations: OWNED, spec: { clusterIPs: ['10.96.0.3'] } });
    assert.deepEqual(vips, ['10.96.0.2', '10.96.0.3', '203.0.113.1']);
    upsert('media', { spec: { clusterIPs: ['10.96.0.2'] } });
    assert.deepEqual(vips, ['10.96.0.3']);
    sink.remove('Service', 'default/turn');
    assert.deepEqual(vips, []);
  });
});
