import assert from 'node:assert/strict';
import fc from 'fast-check';
import { RouteCounts } from '../../proxier/route-counts.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import type { Route } from '../../services/route.ts';
import { route } from '../fixtures.ts';
import { arbitraryChange } from '../iptables/generated.ts';

/** The counts, computed from all Routes. */
function counted(routes: readonly Route[]) {
  const services = (kind: string) =>
    new Set(routes.filter(({ match }) => match.kind === kind).map(({ serviceKey }) => serviceKey));
  const families = ['IPv4', 'IPv6'] as const;
  const count = (family: string, passes: (route: Route) => boolean) =>
    routes.filter((each) => each.family === family && passes(each)).length;
  const lacksLocal = (each: Route) => each.hasEndpointsAnywhere && each.localEndpoints.length === 0;
  return {
    routes: families.flatMap((family) =>
      (['port', 'ranges', 'all'] as const).map((kind) => ({
        family,
        kind,
        count: count(family, ({ match }) => match.kind === kind),
      })),
    ),
    withoutLocalEndpoints: families.flatMap((family) => [
      {
        family,
        policy: 'internal',
        count: count(family, (each) => each.internalLocal && lacksLocal(each)),
      },
      {
        family,
        policy: 'external',
        count: count(family, (each) => each.externalLocal && lacksLocal(each)),
      },
    ]),
    services: { all: services('all').size, ranges: services('ranges').size },
    endpoints: routes.reduce((sum, { servingEndpoints }) => sum + servingEndpoints.length, 0),
  };
}

function allCounts(counts: RouteCounts) {
  return {
    routes: counts.routes(),
    withoutLocalEndpoints: counts.withoutLocalEndpoints(),
    services: counts.allPortsServices(),
    endpoints: counts.endpoints,
  };
}

describe('route-counts: counts of Routes', () => {
  it('keeps counts equal to a count over all Routes, after any changes', () => {
    fc.assert(
      fc.property(fc.array(arbitraryChange, { minLength: 1, maxLength: 20 }), (steps) => {
        const table = new RouteTable({
          nodeName: 'node-a',
          allPortsEnabled: true,
          onChange: () => {},
        });
        for (const step of steps) {
          if ('upsert' in step) table.upsert(step.upsert);
          else if ('remove' in step) table.remove(step.remove.kind, step.remove.key);
          else table.setNodeAddresses(new Set(step.nodeAddresses));
          table.takeChanges();
          assert.deepEqual(allCounts(table.routeCounts), counted([...table.routes()]));
        }
      }),
      { seed: 42, numRuns: 200 },
    );
  });

  it('counts traffic policies Local without an endpoint on this node', () => {
    const counts = new RouteCounts();
    const withoutLocalEndpoints = () => counts.withoutLocalEndpoints().map(({ count }) => count);
    const here = { localEndpoints: [{ address: '10.0.0.1', port: 80 }] };
    const elsewhere = { internalLocal: true, externalLocal: true, hasEndpointsAnywhere: true };
    counts.replaceRoute(undefined, route(elsewhere));
    assert.deepEqual(withoutLocalEndpoints(), [1, 1, 0, 0]);
    counts.replaceRoute(route(elsewhere), route({ ...elsewhere, ...here }));
    assert.deepEqual(withoutLocalEndpoints(), [0, 0, 0, 0]);
    counts.replaceRoute(
      undefined,
      route({ ...elsewhere, family: 'IPv6', hasEndpointsAnywhere: false }),
    );
    assert.deepEqual(withoutLocalEndpoints(), [0, 0, 0, 0]);
    counts.replaceRoute(undefined, route({ ...elsewhere, family: 'IPv6', internalLocal: false }));
    assert.deepEqual(withoutLocalEndpoints(), [0, 0, 0, 1]);
  });

  it('counts a dual-stack Service once', () => {
    const counts = new RouteCounts();
    const all = (family: 'IPv4' | 'IPv6') => route({ family, match: { kind: 'all' } });
    counts.replaceRoute(undefined, all('IPv4'));
    counts.replaceRoute(undefined, all('IPv6'));
    assert.deepEqual(counts.allPortsServices(), { all: 1, ranges: 0 });
    counts.replaceRoute(all('IPv4'), undefined);
    assert.deepEqual(counts.allPortsServices(), { all: 1, ranges: 0 });
    counts.replaceRoute(all('IPv6'), undefined);
    assert.deepEqual(counts.allPortsServices(), { all: 0, ranges: 0 });
  });
});
