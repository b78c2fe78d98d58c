import assert from 'node:assert/strict';
import fc from 'fast-check';
import { sliceCount } from '../../api/owned-ports.ts';
import { RouteCounts } from '../../proxier/route-counts.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import type { OwnedSlices, Route } from '../../services/route.ts';
import { route, upsertWithPods } from '../fixtures.ts';
import { arbitraryChange } from '../iptables/generated.ts';

/** The state of each slice of each range. */
function sliceStates({ ranges, portsPerPod, owners }: OwnedSlices): ('served' | 'vacant')[] {
  return ranges.flatMap((range) =>
    Array.from({ length: sliceCount(range, portsPerPod) }, (_, ordinal) =>
      owners.some((owner) => owner.ordinal === ordinal && owner.serves) ? 'served' : 'vacant',
    ),
  );
}

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
    slices: families.flatMap((family) => {
      const states = routes.flatMap((each) =>
        each.family === family && each.owned !== undefined ? sliceStates(each.owned) : [],
      );
      return (['served', 'vacant'] as const).map((state) => ({
        family,
        state,
        count: states.filter((each) => each === state).length,
      }));
    }),
    services: { all: services('all').size, ranges: services('ranges').size },
    endpoints: routes.reduce((sum, { servingEndpoints }) => sum + servingEndpoints.length, 0),
  };
}

function allCounts(counts: RouteCounts) {
  return {
    routes: counts.routes(),
    withoutLocalEndpoints: counts.withoutLocalEndpoints(),
    services: counts.allPortsServices(),
    slices: counts.ownedSlices(),
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
          if ('upsert' in step) upsertWithPods(table, step.upsert);
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

  it('counts slices with and without an owner that serves, after any changes', () => {
    const owners = fc
      .uniqueArray(fc.record({ ordinal: fc.nat(12), serves: fc.boolean() }), {
        selector: ({ ordinal }) => ordinal,
      })
      .map((all) =>
        all
          .toSorted((a, b) => a.ordinal - b.ordinal)
          .map((each) => ({ ...each, address: `10.244.0.${each.ordinal}`, node: 'this' as const })),
      );
    const ranges = fc.uniqueArray(
      fc.record({ start: fc.nat(3), size: fc.integer({ min: 10, max: 99 }) }),
      {
        selector: ({ start }) => start,
        minLength: 1,
      },
    );
    const routes = fc
      .record({
        id: fc.constantFrom('a', 'b', 'c'),
        owners,
        ranges,
        ports: fc.integer({ min: 3, max: 10 }),
      })
      .map(({ id, owners: all, ranges: sizes, ports }) => {
        const own = sizes.map(({ start, size }) => ({
          protocol: 'UDP' as const,
          from: (start + 1) * 1000,
          to: (start + 1) * 1000 + size - 1,
        }));
        const owned = {
          ranges: own,
          portsPerPod: ports,
          owners: all,
          udpVip: undefined,
          priority: '',
          taken: new Map(),
        };
        return route({
          id,
          serviceKey: `default/${id}`,
          match: { kind: 'ranges', ranges: own },
          owned,
        });
      });
    fc.assert(
      fc.property(fc.array(fc.tuple(routes, fc.boolean()), { minLength: 1 }), (changes) => {
        const counts = new RouteCounts();
        const current = new Map<string, Route>();
        for (const [changed, isRemoved] of changes) {
          const before = current.get(changed.id);
          if (isRemoved) current.delete(changed.id);
          else current.set(changed.id, changed);
          if (before !== undefined || !isRemoved)
            counts.replaceRoute(before, isRemoved ? undefined : changed);
        }
        assert.deepEqual(counts.ownedSlices(), counted([...current.values()]).slices);
      }),
    );
  });
});
