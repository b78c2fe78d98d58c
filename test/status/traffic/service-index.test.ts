import assert from 'node:assert/strict';
import fc from 'fast-check';
import { PROTOCOLS } from '../../../api/objects.ts';
import { type Route, vipsOf } from '../../../services/route.ts';
import { type Destination, ServiceIndex } from '../../../status/traffic/service-index.ts';
import { route } from '../../fixtures.ts';
import { checkProperty } from '../../netlink/property.ts';

const VIPS = ['10.96.0.1', '10.96.0.2', '192.0.2.1'] as const;
const NODE = '192.0.2.1';
const isNodeAddress = (address: string) => address === NODE;
const port = fc.integer({ min: 1, max: 6 });
const protocol = fc.constantFrom(...PROTOCOLS);

/** Each ID has one place, as VIP conflicts are resolved before; the other fields vary. */
const exact = fc
  .record({ vip: fc.constantFrom(...VIPS), protocol, port, version: fc.nat(3) })
  .map(({ vip, protocol, port, version }) =>
    route({
      id: `exact ${vip} ${protocol} ${port}`,
      clusterIP: vip,
      match: { kind: 'port', protocol, port },
      nodePort: vip === VIPS[0] ? port + 3 : 0,
      affinitySeconds: version,
    }),
  );
const ranges = fc
  .record({ vip: fc.constantFrom(...VIPS), protocol, from: port, version: fc.nat(3) })
  .map(({ vip, protocol, from, version }) =>
    route({
      id: `ranges ${vip}`,
      clusterIP: undefined,
      externalIPs: [vip],
      match: { kind: 'ranges', ranges: [{ protocol, from, to: from + 2 }] },
      affinitySeconds: version,
    }),
  );
const all = fc
  .record({ vip: fc.constantFrom(...VIPS), version: fc.nat(3) })
  .map(({ vip, version }) =>
    route({
      id: `all ${vip}`,
      clusterIP: undefined,
      loadBalancerIPs: [vip],
      match: { kind: 'all' },
      affinitySeconds: version,
    }),
  );
const change = fc.record({ changed: fc.oneof(exact, ranges, all), removes: fc.boolean() });
const destinations: Destination[] = VIPS.flatMap((address) =>
  PROTOCOLS.flatMap((protocol) =>
    [1, 2, 3, 4, 5, 6, 7, 8, 9].map((port) => ({ address, protocol, port })),
  ),
);

function naiveSearch(
  routes: readonly Route[],
  { protocol, address, port }: Destination,
): Route | undefined {
  const ofVip = routes.filter((route) => vipsOf(route).includes(address));
  return (
    ofVip.find(
      ({ match }) => match.kind === 'port' && match.protocol === protocol && match.port === port,
    ) ??
    ofVip.find(
      ({ match }) =>
        match.kind === 'ranges' &&
        match.ranges.some((r) => r.protocol === protocol && r.from <= port && port <= r.to),
    ) ??
    ofVip.find(({ match }) => match.kind === 'all') ??
    routes.find(
      ({ match, nodePort }) =>
        isNodeAddress(address) &&
        match.kind === 'port' &&
        match.protocol === protocol &&
        nodePort === port,
    )
  );
}

describe('ServiceIndex.routesOfEndpoint', () => {
  it('knows the Services of an endpoint by their endpoint port, and forgets removed ones', () => {
    const index = new ServiceIndex();
    const web = route({ id: 'web', serviceKey: 'default/web' }, ['10.244.1.11']);
    const other = route({ id: 'other', serviceKey: 'default/other' }, ['10.244.1.11']);
    const all = route({ id: 'all', serviceKey: 'a/all', match: { kind: 'all' } }, ['10.244.1.12']);
    for (const each of [web, other, all]) index.replaceRoute(undefined, each);
    const port = web.servingEndpoints[0]?.port ?? 0;
    const services = (address: string, number: number, protocol: 'TCP' | 'UDP' = 'TCP') =>
      index
        .routesOfEndpoint({ address, port: number, protocol })
        .map(({ serviceKey }) => serviceKey);
    assert.deepEqual(services('10.244.1.11', port), ['default/other', 'default/web']);
    assert.deepEqual(services('10.244.1.11', port + 1), []);
    assert.deepEqual(services('10.244.1.11', port, 'UDP'), []);
    assert.deepEqual(services('10.244.1.12', 9, 'UDP'), ['a/all']);
    for (const each of [web, other, all]) index.replaceRoute(each, undefined);
    assert.deepEqual(services('10.244.1.11', port), []);
  });
});

describe('ServiceIndex: the Route of a destination', () => {
  it('finds the Route that a search through all Routes finds, after any changes', () => {
    checkProperty(
      fc.property(fc.array(change, { maxLength: 30, size: 'max' }), (changes) => {
        const index = new ServiceIndex();
        const known = new Map<string, Route>();
        for (const { changed, removes } of changes) {
          const before = known.get(changed.id);
          if (removes) known.delete(changed.id);
          else known.set(changed.id, changed);
          index.replaceRoute(before, known.get(changed.id));
        }
        const routes = [...known.values()];
        for (const each of destinations) {
          assert.equal(index.find(each, isNodeAddress), naiveSearch(routes, each));
        }
        assert.deepEqual(new Set(index.vips), new Set(routes.flatMap(vipsOf)));
      }),
    );
  });

  it('keeps the new owner of a port if the old Route is removed later', () => {
    const match = { kind: 'port', protocol: 'TCP', port: 80 } as const;
    const old = route({ id: 'old', clusterIP: VIPS[0], match });
    const next = route({ id: 'next', clusterIP: VIPS[0], match });
    const index = new ServiceIndex();
    index.replaceRoute(undefined, old);
    index.replaceRoute(undefined, next);
    index.replaceRoute(old, undefined);
    assert.equal(index.findByVip({ protocol: 'TCP', address: VIPS[0], port: 80 }), next);
  });
});
