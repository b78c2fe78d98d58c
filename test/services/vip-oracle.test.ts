import assert from 'node:assert/strict';
import fc from 'fast-check';
import { ALL_PORT_FEATURES } from '../../api/all-ports.ts';
import type { Service } from '../../api/objects.ts';
import { rangesOverlap } from '../../api/ports.ts';
import { type ServedPort, servedPorts } from '../../services/served-ports.ts';
import { grantKey, VipConflicts } from '../../services/vip-conflicts.ts';
import { service, servicePort } from '../fixtures.ts';

/** Addresses that all Services may have as cluster IP, load balancer IP or external IP. */
const SHARED = ['203.0.113.1', '203.0.113.2'] as const;

const key = fc.constantFrom('x/a', 'x/b', 'y/a', 'y/b', 'z/a');
const port = fc.constantFrom(80, 81, 90);
const kinds: fc.Arbitrary<Partial<Service>> = fc.oneof(
  { arbitrary: fc.constant({ portsAnnotation: 'all' }), weight: 2 },
  fc
    .constantFrom('80-85', '81-90/TCP', '80/TCP,90/TCP', '4000-9000/TCP,90/UDP')
    .map((portsAnnotation) => ({ portsAnnotation })),
  fc.constant({ ownedPortsAnnotation: '80-89/TCP', portsPerPodAnnotation: '2' }),
  fc.constant({
    portsAnnotation: '85-95',
    ownedPortsAnnotation: '80-84/TCP',
    portsPerPodAnnotation: '1',
  }),
  fc.constant({ portsAnnotation: 'nonsense' }),
  {
    arbitrary: fc.uniqueArray(port, { minLength: 1 }).map((ports) => ({
      ports: ports.map((each) => servicePort({ name: `p${each}`, port: each })),
    })),
    weight: 5,
  },
);
const someVips = fc.subarray([...SHARED]);
const serviceOf = fc
  .record({
    key,
    year: fc.constantFrom('2024', '2025', '2026'),
    cluster: fc.integer({ min: 0, max: 11 }).map((die) => SHARED[die]),
    balancers: fc.oneof(someVips, fc.constant<('203.0.113.1' | '203.0.113.2')[]>([...SHARED])),
    externals: fc.oneof(fc.constant([]), someVips),
    ipMode: fc.constantFrom('VIP' as const, 'VIP' as const, 'Proxy' as const),
    otherProxy: fc.integer({ min: 0, max: 9 }).map((die) => die === 0),
    kinds,
  })
  .map(({ key: name, year, cluster, balancers, externals, ipMode, otherProxy, kinds: fields }) =>
    service({
      key: name,
      type: balancers.length > 0 ? 'LoadBalancer' : 'ClusterIP',
      creationTimestamp: `${year}-01-01T00:00:00Z`,
      clusterIPs: [cluster ?? `10.96.0.${name.charCodeAt(0) + name.charCodeAt(2)}`],
      loadBalancerIngress: balancers.map((ip) => ({ ip, ipMode })),
      externalIPs: externals,
      otherProxy,
      ...fields,
    }),
  );
type Change =
  | { readonly put: Service }
  | { readonly amend: string; readonly fields: Partial<Service> }
  | { readonly remove: string }
  | { readonly nodeAddresses: readonly string[] };
const amendment = fc.oneof(
  someVips.map((externalIPs) => ({ externalIPs })),
  someVips.map((ips) => ({
    type: 'LoadBalancer' as const,
    loadBalancerIngress: ips.map((ip) => ({ ip, ipMode: 'VIP' as const })),
  })),
);
const change: fc.Arbitrary<Change> = fc.oneof(
  { arbitrary: serviceOf.map((put) => ({ put })), weight: 5 },
  { arbitrary: fc.record({ amend: key, fields: amendment }), weight: 4 },
  { arbitrary: key.map((remove) => ({ remove })), weight: 2 },
  { arbitrary: fc.subarray([SHARED[0]]).map((nodeAddresses) => ({ nodeAddresses })), weight: 1 },
);

interface Claimed {
  readonly service: Service;
  readonly port: ServedPort;
  readonly vip: string;
}

const RANK = { port: 2, ranges: 1, all: 0 } as const;
const first = (a: Service, aId: string, b: Service, bId: string) => {
  const sortKey = (each: Service, id: string) => `${each.creationTimestamp} ${each.key} ${id}`;
  return sortKey(a, aId) < sortKey(b, bId);
};
const portsOf = ({ port: { match } }: Claimed) => {
  if (match.kind === 'ranges') return match.ranges;
  if (match.kind === 'all') return [];
  return [{ protocol: match.protocol, from: match.port, to: match.port }];
};
const intersect = (a: Claimed, b: Claimed) =>
  a.port.match.kind === 'all' ||
  b.port.match.kind === 'all' ||
  rangesOverlap(portsOf(a), portsOf(b));

/** The contract, item 7, in plain words: whose is each VIP, and which requests get ports of it. */
function granted(services: readonly Service[], nodeAddresses: readonly string[]): Set<string> {
  const withClusterIP = (vip: string) => services.filter((each) => each.clusterIPs.includes(vip));
  const hasBalancerIP = (each: Service, vip: string) =>
    each.type === 'LoadBalancer' && each.loadBalancerIngress.some(({ ip }) => ip === vip);
  const isBarred = ({ service: claimant, vip, port: { match } }: Claimed) => {
    // A node's own address is never captured as a whole.
    if (match.kind !== 'port' && nodeAddresses.includes(vip)) return true;
    // A cluster IP is its Service's alone.
    const [owner] = withClusterIP(vip).sort((a, b) => (first(a, '', b, '') ? -1 : 1));
    if (owner !== undefined) return owner !== claimant;
    // External IPs get no port of another Service's load balancer IP.
    if (hasBalancerIP(claimant, vip)) return false;
    return services.some((other) => other !== claimant && hasBalancerIP(other, vip));
  };
  const claimed = services
    .flatMap((each) =>
      servedPorts(each, ALL_PORT_FEATURES).ports.flatMap((served): Claimed[] => {
        const vips = [served.clusterIP, ...served.externalIPs, ...served.loadBalancerIPs];
        return [...new Set(vips)].map((vip) => ({ service: each, port: served, vip }));
      }),
    )
    .filter((each) => !isBarred(each))
    .sort((a, b) => (first(a.service, a.port.id, b.service, b.port.id) ? -1 : 1));
  const winners: Claimed[] = [];
  for (const claim of claimed) {
    const loses = winners.some((older) => {
      if (older.vip !== claim.vip || !intersect(older, claim)) return false;
      const specific = RANK[claim.port.match.kind] - RANK[older.port.match.kind];
      if (specific === 0) return true;
      // The older keeps all that it claimed against other namespaces; within one the most specific wins.
      return specific > 0 && older.service.key.split('/')[0] !== claim.service.key.split('/')[0];
    });
    if (!loses) winners.push(claim);
  }
  return new Set(winners.map(({ port: { id }, vip }) => grantKey(id, vip)));
}

/** The answers of `VipConflicts` for a Service, for comparison. */
function answers(conflicts: VipConflicts, each: Service) {
  const refusals = conflicts.refusals(each.key);
  const { ports } = servedPorts(each, ALL_PORT_FEATURES);
  const taken = ports.flatMap((served) =>
    served.ownership === undefined
      ? []
      : [served.clusterIP, ...served.loadBalancerIPs]
          .filter((vip) => !refusals.has(grantKey(served.id, vip)))
          .map((vip) => [vip, conflicts.portsTakenFrom(served, vip)] as const),
  );
  return { refusals, taken };
}

describe('vip-conflicts: random changes', () => {
  it('grants what the contract says, and says which Services a change affects', () => {
    fc.assert(
      fc.property(fc.array(change, { maxLength: 25 }), (changes) => {
        const conflicts = new VipConflicts();
        const services = new Map<string, Service>();
        let nodeAddresses: readonly string[] = [];
        let known = new Map<string, ReturnType<typeof answers>>();
        for (const each of changes) {
          let affected: ReadonlySet<string>;
          let changed = '';
          if ('put' in each || 'amend' in each) {
            changed = 'put' in each ? each.put.key : each.amend;
            const before = services.get(changed);
            const put = 'put' in each ? each.put : before && { ...before, ...each.fields };
            if (put === undefined) continue;
            services.set(changed, put);
            affected = conflicts.replaceService(put, servedPorts(put, ALL_PORT_FEATURES).ports);
          } else if ('remove' in each) {
            changed = each.remove;
            services.delete(changed);
            affected = conflicts.removeService(changed);
          } else {
            nodeAddresses = each.nodeAddresses;
            affected = conflicts.setNodeAddresses(new Set(nodeAddresses));
          }
          const fresh = new VipConflicts();
          fresh.setNodeAddresses(new Set(nodeAddresses));
          for (const one of services.values())
            fresh.replaceService(one, servedPorts(one, ALL_PORT_FEATURES).ports);
          const now = new Map([...services].map(([name, one]) => [name, answers(conflicts, one)]));
          const wins = granted([...services.values()], nodeAddresses);
          for (const [name, one] of services) {
            assert.deepEqual(now.get(name), answers(fresh, one), `from scratch: ${name}`);
            if (name !== changed && !affected.has(name))
              assert.deepEqual(now.get(name), known.get(name), `not reported as affected: ${name}`);
            for (const { id, clusterIP, externalIPs, loadBalancerIPs } of servedPorts(
              one,
              ALL_PORT_FEATURES,
            ).ports) {
              for (const vip of [clusterIP, ...externalIPs, ...loadBalancerIPs]) {
                const request = grantKey(id, vip);
                assert.equal(!now.get(name)?.refusals.has(request), wins.has(request), request);
              }
            }
          }
          known = now;
        }
      }),
      { seed: 7, numRuns: 1000 },
    );
  });
});
