import assert from 'node:assert/strict';
import fc from 'fast-check';
import { PROTOCOLS } from '../../../api/objects.ts';
import { type Route, vipsOf } from '../../../services/route.ts';
import { type Destination, ServiceIndex } from '../../../status/traffic/service-index.ts';
import { route } from '../../fixtures.ts';
import { checkProperty } from '../../netlink/property.ts';
import { routeChanges, VIPS } from './generated-changes.ts';

const NODE = '192.0.2.1';
const isNodeAddress = (address: string) => address === NODE;
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
      fc.property(routeChanges, (changes) => {
        const index = new ServiceIndex();
        for (const { before, after } of changes) index.replaceRoute(before, after);
        const routes = changes.at(-1)?.routes ?? [];
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
