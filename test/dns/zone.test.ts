import assert from 'node:assert/strict';
import { Zone } from '../../dns/zone.ts';
import { endpoint, service, servicePort, slice } from '../fixtures.ts';
import { ask, linesOf, zoneWith } from './zone-fixtures.ts';

const HTTP = servicePort({ name: 'http', port: 80 });
const WEB = 'web.default.svc.cluster.local';
const EMPTY = { services: 0, slices: 0, names: 0, parents: 0 };

describe('zone: Zone', () => {
  it('has empty non-terminals above existing names, up to the apexes', () => {
    const zone = zoneWith([service({ clusterIPs: ['10.96.0.10', 'fd00::a'], ports: [HTTP] })]);
    const above = [
      `_tcp.${WEB}`,
      'default.svc.cluster.local',
      'svc.cluster.local',
      'cluster.local',
      '0.96.10.in-addr.arpa',
      '96.10.in-addr.arpa',
      '10.in-addr.arpa',
      'in-addr.arpa',
      '0.d.f.ip6.arpa',
      'f.ip6.arpa',
      'ip6.arpa',
    ];
    for (const name of above) assert.deepEqual(linesOf(zone, name), [], name);
    for (const name of [
      'local',
      'arpa',
      '',
      'other.svc.cluster.local',
      `http.${WEB}`,
      `_udp.${WEB}`,
      `x.${WEB}`,
      'efault.svc.cluster.local',
      '11.0.96.10.in-addr.arpa',
      '97.10.in-addr.arpa',
      'e.ip6.arpa',
      'xcluster.local',
    ]) {
      assert.equal(linesOf(zone, name), undefined, name);
    }
  });

  it('has the static names of the zone without any Service', () => {
    const zone = zoneWith([]);
    for (const name of ['cluster.local', 'svc.cluster.local', 'pod.cluster.local']) {
      assert.deepEqual(linesOf(zone, name), [], name);
    }
    assert.deepEqual(linesOf(zone, 'dns-version.cluster.local'), ['TXT 1.1.0']);
    assert.equal(linesOf(zone, 'default.svc.cluster.local'), undefined);
    assert.equal(linesOf(zone, 'in-addr.arpa'), undefined);
    assert.deepEqual(linesOf(zone, '10-3-0-1.default.pod.cluster.local'), ['A 10.3.0.1']);
    assert.deepEqual(zone.sizes, EMPTY);
  });

  it('reports changes of the endpoints of headless Services, except for the initial list', () => {
    const times: number[] = [];
    const zone = new Zone({
      clusterDomain: 'cluster.local',
      onEndpoints: (time) => times.push(time),
    });
    const upsert = (name: string, triggerTime: number | undefined, address = '10.244.0.1') =>
      zone.upsert(slice([endpoint(address)], { serviceKey: `default/${name}`, triggerTime }));
    zone.upsert(service({ name: 'db', headless: true }));
    zone.upsert(service({ name: 'web', clusterIPs: ['10.96.0.1'] }));
    upsert('db', 1);
    for (const kind of ['Service', 'EndpointSlice'] as const) zone.synced(kind);
    upsert('db', 2);
    // Not a change of its endpoints.
    upsert('db', 2, '10.244.0.2');
    upsert('db', undefined);
    upsert('web', 3);
    upsert('absent', 4);
    assert.deepEqual(times, [2]);
  });

  it('is synced once Services and EndpointSlices are listed', () => {
    const zone = zoneWith([]);
    assert.equal(zone.isSynced, false);
    zone.synced('Service');
    zone.synced('Node');
    assert.equal(zone.isSynced, false);
    zone.synced('EndpointSlice');
    assert.equal(zone.isSynced, true);
  });

  it('changes only SRV records when a Service changes to or from all-ports', () => {
    const zone = zoneWith([service({ ports: [HTTP] })]);
    const srv = () => ask(zone, `_http._tcp.${WEB}`, 'SRV');
    const others = () => [linesOf(zone, WEB), linesOf(zone, '10.0.96.10.in-addr.arpa')];
    const listed = [`SRV 0 100 80 ${WEB}`];
    const before = others();
    assert.deepEqual(srv(), listed);
    for (const [portsAnnotation, answer] of [
      ['all', 'NXDOMAIN'],
      ['false', listed],
      ['20000-50000/UDP', 'NXDOMAIN'],
      ['nonsense', 'NXDOMAIN'],
      [undefined, listed],
    ] as const) {
      const { serial } = zone;
      zone.upsert(service({ ports: [HTTP], portsAnnotation }));
      assert.deepEqual(srv(), answer, portsAnnotation);
      // Nothing changes between kinds of refusals or of all-ports.
      assert.equal(zone.serial, serial + (portsAnnotation === 'nonsense' ? 0 : 1));
      assert.deepEqual(others(), before);
      assert.equal(linesOf(zone, `_tcp.${WEB}`)?.length, answer === 'NXDOMAIN' ? undefined : 0);
    }
    zone.upsert(service({ ports: [], allPorts: true }));
    assert.equal(srv(), 'NXDOMAIN');
    assert.deepEqual(others(), before);
  });

  it('has PTR records of every Service that claims an address', () => {
    const headless = (name: string) =>
      service({ name, clusterIPs: [], headless: true, key: `default/${name}` });
    const of = (name: string) =>
      slice([endpoint('10.96.0.10', { hostname: 'h' })], { serviceKey: `default/${name}` });
    const zone = zoneWith([of('b'), headless('b'), service(), headless('a'), of('a')]);
    const pointers = () => ask(zone, '10.0.96.10.in-addr.arpa', 'PTR');
    const [a, b] = ['PTR h.a.default.svc.cluster.local', 'PTR h.b.default.svc.cluster.local'];
    assert.deepEqual(pointers(), [a, b, `PTR ${WEB}`]);
    zone.remove('Service', 'default/a');
    assert.deepEqual(pointers(), [b, `PTR ${WEB}`]);
    zone.upsert(headless('a'));
    zone.remove('Service', 'default/web');
    assert.deepEqual(pointers(), [a, b]);
    zone.remove('EndpointSlice', 'default/b-1');
    assert.deepEqual(pointers(), [a]);
    zone.remove('EndpointSlice', 'default/a-1');
    assert.equal(pointers(), 'NXDOMAIN');
    assert.equal(linesOf(zone, 'in-addr.arpa'), undefined);
  });

  it('moves a slice to another Service', () => {
    const headless = (name: string) => service({ name, clusterIPs: [], headless: true });
    const owned = (name: string) =>
      slice([endpoint('10.1.0.1')], { name: 'moving', serviceKey: `default/${name}` });
    const zone = zoneWith([headless('a'), headless('b'), owned('a')]);
    const answers = () =>
      ['a', 'b'].map((name) => ask(zone, `${name}.default.svc.cluster.local`, 'A'));
    assert.deepEqual(answers(), [['A 10.1.0.1'], 'NXDOMAIN']);
    zone.upsert(owned('b'));
    assert.deepEqual(answers(), ['NXDOMAIN', ['A 10.1.0.1']]);
    zone.remove('EndpointSlice', 'default/moving');
    assert.deepEqual(answers(), ['NXDOMAIN', 'NXDOMAIN']);
  });

  it('uses slices that arrived before the Service, or before it was headless', () => {
    const zone = zoneWith([slice([endpoint('10.1.0.1')])]);
    assert.equal(ask(zone, WEB, 'A'), 'NXDOMAIN');
    zone.upsert(service());
    assert.deepEqual(ask(zone, WEB, 'A'), ['A 10.96.0.10']);
    zone.upsert(service({ clusterIPs: [], headless: true }));
    assert.deepEqual(ask(zone, WEB, 'A'), ['A 10.1.0.1']);
    zone.upsert(service({ type: 'ExternalName', clusterIPs: [], externalName: 'example.com' }));
    assert.deepEqual(ask(zone, WEB, 'A'), ['CNAME example.com']);
    assert.equal(ask(zone, '1.0.1.10.in-addr.arpa', 'PTR'), 'NXDOMAIN');
  });

  it('increases its serial only when records change', () => {
    const zone = zoneWith([]);
    const grows = (act: () => void) => {
      const before = zone.serial;
      act();
      return zone.serial - before;
    };
    assert.equal(
      grows(() => zone.upsert(service())),
      1,
    );
    assert.equal(
      grows(() => zone.upsert(service({ affinitySeconds: 60, uid: 'x' }))),
      0,
    );
    assert.equal(
      grows(() => zone.upsert(slice([endpoint('10.1.0.1')]))),
      0,
    );
    assert.ok(grows(() => zone.upsert(service({ clusterIPs: [], headless: true }))) > 0);
    const again = slice([endpoint('10.1.0.1', { nodeName: 'node-b', zone: 'z' })]);
    assert.equal(
      grows(() => zone.upsert(again)),
      0,
    );
    assert.equal(
      grows(() => zone.remove('EndpointSlice', 'default/web-1')),
      1,
    );
    assert.equal(
      grows(() => zone.remove('Service', 'default/web')),
      0,
    );
    assert.equal(
      grows(() => zone.remove('Service', 'default/other')),
      0,
    );
    assert.equal(
      grows(() => zone.remove('EndpointSlice', 'default/other')),
      0,
    );
    assert.deepEqual(zone.sizes, EMPTY);
  });

  it('ignores Nodes', () => {
    const zone = zoneWith([
      {
        kind: 'Node',
        key: 'web',
        name: 'web',
        zone: undefined,
        podCIDRs: [],
        labels: {},
        addresses: [],
        deleting: false,
        taints: [],
      },
      service(),
    ]);
    zone.remove('Node', 'default/web');
    assert.deepEqual(ask(zone, WEB, 'A'), ['A 10.96.0.10']);
  });

  it('reports a problem once, and again when it returns', () => {
    const problems: string[] = [];
    const zone = zoneWith([service({ name: 'other' })], ({ message }) => problems.push(message));
    const external = (externalName: string | undefined, uid = '') =>
      service({ type: 'ExternalName', clusterIPs: [], externalName, uid });
    const bad = 'Service default/web: spec.externalName: must be a domain name, not "a b"';
    zone.upsert(external('a b'));
    zone.upsert(external('a b', 'x'));
    zone.upsert(slice([endpoint('10.1.0.1')]));
    assert.deepEqual(problems.splice(0), [bad]);
    assert.equal(ask(zone, WEB, 'A'), 'NXDOMAIN');
    assert.deepEqual(ask(zone, 'other.default.svc.cluster.local', 'A'), ['A 10.96.0.10']);
    zone.upsert(external('example.com'));
    assert.deepEqual(ask(zone, WEB, 'A'), ['CNAME example.com']);
    zone.upsert(external('a b'));
    zone.upsert(external(undefined));
    assert.deepEqual(problems.splice(0), [
      bad,
      'Service default/web: spec.externalName: is required',
    ]);
    zone.remove('Service', 'default/web');
    assert.deepEqual(problems, []);
  });
});
