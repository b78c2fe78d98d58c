import assert from 'node:assert/strict';
import { ownedVipsSink } from '../../agent/policy-owned-vips.ts';
import { readObject } from '../../api/read-object.ts';
import { type ServiceFields, serviceManifest } from '../e2e/manifests.ts';

const OWNED = { 'portwide.dev/owned-ports': '20000-20999/UDP' };

describe('policy-owned-vips: VIPs of Services with owned ports, for network policy', () => {
  const vips = new Set<string>();
  let changes = 0;
  const sink = ownedVipsSink((vip, isOwned) => {
    changes++;
    if (isOwned) vips.add(vip);
    else vips.delete(vip);
  });
  const upsert = (name: string, fields: ServiceFields) => {
    const object = readObject(serviceManifest(name, fields), ['Service']);
    assert.ok(object !== undefined);
    sink.upsert(object);
  };

  it('follows the Services', () => {
    upsert('web', { spec: { clusterIPs: ['10.96.0.1'] } });
    assert.equal(changes, 0, 'a Service without owned ports changes nothing');
    upsert('media', {
      annotations: OWNED,
      ingress: [
        { ip: '203.0.113.1', ipMode: 'VIP' },
        { ip: '203.0.113.2', ipMode: 'Proxy' },
      ],
      spec: { type: 'LoadBalancer', clusterIPs: ['10.96.0.2'], externalIPs: ['203.0.113.3'] },
    });
    assert.deepEqual([...vips].sort(), ['10.96.0.2', '203.0.113.1']);
    upsert('turn', { annotations: OWNED, spec: { clusterIPs: ['10.96.0.3'] } });
    assert.deepEqual([...vips].sort(), ['10.96.0.2', '10.96.0.3', '203.0.113.1']);
    upsert('media', { spec: { clusterIPs: ['10.96.0.2'] } });
    assert.deepEqual([...vips].sort(), ['10.96.0.3']);
    sink.remove('Service', 'default/turn');
    assert.deepEqual([...vips].sort(), []);
  });

  it('reports each VIP once, and nothing when its Services stay the same', () => {
    changes = 0;
    const spec = (...clusterIPs: string[]) => ({ annotations: OWNED, spec: { clusterIPs } });
    for (let count = 1; count <= 100; count++) upsert(`media-${count}`, spec(`10.96.1.${count}`));
    assert.equal(changes, 100);
    upsert('media-7', spec('10.96.1.7'));
    upsert('web', { spec: { clusterIPs: ['10.96.0.1'] } });
    sink.remove('Service', 'default/web');
    assert.equal(changes, 100);
    upsert('also', spec('10.96.1.7'));
    sink.remove('Service', 'default/media-7');
    assert.equal(changes, 100, 'another Service has the VIP');
    assert.ok(vips.has('10.96.1.7'));
    upsert('also', spec('10.96.1.8'));
    assert.equal(changes, 101);
    assert.ok(!vips.has('10.96.1.7'));
  });
});
