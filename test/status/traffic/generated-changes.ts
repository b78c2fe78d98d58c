/** Random changes of Routes. */
import fc from 'fast-check';
import { PROTOCOLS } from '../../../api/objects.ts';
import type { Route } from '../../../services/route.ts';
import { route } from '../../fixtures.ts';

export const VIPS = ['10.96.0.1', '10.96.0.2', '192.0.2.1'] as const;
const port = fc.integer({ min: 1, max: 6 });
const protocol = fc.constantFrom(...PROTOCOLS);

interface RouteChange {
  readonly before: Route | undefined;
  readonly after: Route | undefined;
  /** All Routes after the change. */
  readonly routes: readonly Route[];
}

/** Each ID has one place, as VIP conflicts are resolved before; the other fields vary. */
const exact = fc
  .record({ vip: fc.constantFrom(...VIPS), protocol, port, version: fc.nat(3) })
  .map(({ vip, protocol, port, version }) =>
    route(
      {
        id: `exact ${vip} ${protocol} ${port}`,
        clusterIP: vip,
        match: { kind: 'port', protocol, port },
        nodePort: vip === VIPS[0] ? port + 3 : 0,
        affinitySeconds: version,
      },
      version > 1 ? ['10.244.1.11'] : [],
    ),
  );
const ranges = fc
  .record({ vip: fc.constantFrom(...VIPS), protocol, from: port, version: fc.nat(3) })
  .map(({ vip, protocol, from, version }) =>
    route(
      {
        id: `ranges ${vip}`,
        clusterIP: undefined,
        externalIPs: [vip],
        match: { kind: 'ranges', ranges: [{ protocol, from, to: from + 2 }] },
        affinitySeconds: version,
      },
      version > 1 ? ['10.244.1.11'] : [],
    ),
  );
const all = fc
  .record({ vip: fc.constantFrom(...VIPS), version: fc.nat(3) })
  .map(({ vip, version }) =>
    route(
      {
        id: `all ${vip}`,
        clusterIP: undefined,
        loadBalancerIPs: [vip],
        match: { kind: 'all' },
        affinitySeconds: version,
      },
      version > 1 ? ['10.244.1.11'] : [],
    ),
  );
const change = fc.record({ changed: fc.oneof(exact, ranges, all), removes: fc.boolean() });
/** A sequence of changes of Routes with and without endpoints. */
export const routeChanges = fc.array(change, { maxLength: 30, size: 'max' }).map((changes) => {
  const known = new Map<string, Route>();
  return changes.map(({ changed, removes }): RouteChange => {
    const before = known.get(changed.id);
    if (removes) known.delete(changed.id);
    else known.set(changed.id, changed);
    return { before, after: known.get(changed.id), routes: [...known.values()] };
  });
});
