import assert from 'node:assert/strict';
import { nftRuleText } from '../../nft/rule.ts';
import type { MapElement } from '../../nftables/element.ts';
import { NftPlan, type NftPlanOptions, type PlanDiff } from '../../nftables/plan.ts';
import type { Route, RouteMatch } from '../../services/route.ts';
import { slotTable } from '../../traffic/consistent-hash.ts';
import { route } from '../fixtures.ts';
import { textsOf } from './elements.ts';
import { modeOptions } from './options.ts';

const [A, B, C] = ['10.244.0.1', '10.244.0.2', '10.244.0.3'] as const;
const VIP = '10.96.0.10';
const LB = '203.0.113.1';
const ALL: RouteMatch = { kind: 'all' };
const ranges = (from: number, to: number): RouteMatch => ({
  kind: 'ranges',
  ranges: [{ protocol: 'TCP', from, to }],
});

const newPlan = (fields: Partial<NftPlanOptions> = {}) => new NftPlan(modeOptions(fields));
/** Elements as text, `map: element`, sorted. */
const texts = (elements: Iterable<MapElement>) =>
  Object.entries(textsOf(elements))
    .flatMap(([map, all]) => (all ?? []).map((text) => `${map}: ${text}`))
    .sort();
const diffTexts = ({ chains, deletes, adds, cleanup }: PlanDiff) => ({
  chains: chains.map(({ name }) => name),
  deletes: texts(deletes),
  adds: texts(adds),
  cleanup: texts(cleanup),
});
const EMPTY = { chains: [], deletes: [], adds: [], cleanup: [] };
const snapshot = (plan: NftPlan) => texts([...plan.snapshot()].flatMap(({ elements }) => elements));

/** A plan whose Routes are applied. */
function appliedPlan(...routes: readonly Route[]): NftPlan {
  const plan = newPlan();
  plan.update(routes, []);
  snapshot(plan);
  return plan;
}
function nextDiff(plan: NftPlan, upserts: readonly Route[], removals: readonly string[] = []) {
  plan.update(upserts, removals);
  return diffTexts(plan.diff());
}

describe('plan: diffs of map elements', () => {
  it('adds the endpoint and changes the dispatch chain when an endpoint is added', () => {
    assert.deepEqual(nextDiff(appliedPlan(route({}, [A])), [route({}, [A, B])]), {
      chains: ['internal-port-2'],
      deletes: [`service-ports: ${VIP} . tcp . 80 : goto internal-port-1`],
      adds: [
        `endpoints: ${VIP} . tcp . 80 . 1 : ${B} . 8080`,
        `hairpin-connections: ${B} . ${B}`,
        `service-ports: ${VIP} . tcp . 80 : goto internal-port-2`,
      ],
      cleanup: [],
    });
  });

  it('deletes a removed endpoint in the cleanup phase, for packets in flight', () => {
    const plan = appliedPlan(
      route({}, [A, B]),
      route({ id: 'other', clusterIP: '10.96.0.11' }, [A]),
    );
    assert.deepEqual(nextDiff(plan, [route({}, [A])]), {
      chains: [],
      deletes: [`service-ports: ${VIP} . tcp . 80 : goto internal-port-2`],
      adds: [`service-ports: ${VIP} . tcp . 80 : goto internal-port-1`],
      cleanup: [
        `endpoints: ${VIP} . tcp . 80 . 1 : ${B} . 8080`,
        `hairpin-connections: ${B} . ${B}`,
      ],
    });
  });

  it('deletes no-endpoint elements in the cleanup phase when the first endpoint is added', () => {
    for (const match of [{ kind: 'port', protocol: 'TCP', port: 80 } as const, ranges(1, 9), ALL]) {
      const routeWith = (pods: readonly string[]) =>
        route({ match, clusterIP: undefined, externalIPs: [LB], nodePort: 30_080 }, pods);
      const plan = appliedPlan(routeWith([]));
      const { adds, deletes, cleanup } = nextDiff(plan, [routeWith([A])]);
      assert.ok(adds.some((text) => /^(service|range)-/.test(text)));
      assert.deepEqual(
        deletes.filter((text) => /no-endpoint/.test(text)),
        [],
      );
      const cleanupCount = cleanup.filter((text) => /no-endpoint/.test(text)).length;
      assert.equal(cleanupCount, match.kind === 'port' ? 2 : 0);
    }
    // An overlapping range cannot exist beside the old one.
    const moved = nextDiff(appliedPlan(route({ match: ranges(1, 9) })), [
      route({ match: ranges(5, 20) }),
    ]);
    assert.deepEqual(moved.deletes.filter((text) => /^vip-ranges/.test(text)).length, 1);
  });

  it('replaces one element when an endpoint replaces another', () => {
    assert.deepEqual(nextDiff(appliedPlan(route({}, [A, B])), [route({}, [A, C])]), {
      chains: [],
      deletes: [`endpoints: ${VIP} . tcp . 80 . 1 : ${B} . 8080`],
      adds: [`endpoints: ${VIP} . tcp . 80 . 1 : ${C} . 8080`, `hairpin-connections: ${C} . ${C}`],
      cleanup: [`hairpin-connections: ${B} . ${B}`],
    });
  });

  it('rewrites only the slots that change when an endpoint of a hashed Route goes', () => {
    const hashed = (addresses: readonly string[]) =>
      route({ consistentHash: 'client-address' }, addresses);
    const plan = appliedPlan(hashed([A, B, C]));
    const [before, after] = [
      [A, B, C],
      [A, C],
    ].map((addresses) =>
      slotTable(
        'default/web',
        addresses.map((address) => ({ address, port: 8080 })),
      ),
    );
    const changed = [...(after?.entries() ?? [])].filter(
      ([slot, { address }]) => before?.[slot]?.address !== address,
    );
    const elements = (table: typeof before) =>
      changed
        .map(
          ([slot]) => `endpoints: ${VIP} . tcp . 80 . ${slot} : ${table?.[slot]?.address} . 8080`,
        )
        .sort();
    assert.ok(changed.length > 330 && changed.length < 370, String(changed.length));
    assert.deepEqual(nextDiff(plan, [hashed([A, C])]), {
      chains: [],
      deletes: elements(before),
      adds: elements(after),
      cleanup: [`hairpin-connections: ${B} . ${B}`],
    });
  });

  it('returns an empty diff when a Route is updated without a change', () => {
    const plan = appliedPlan(route({}, [A]));
    assert.deepEqual(nextDiff(plan, [route({}, [A])]), EMPTY);
    plan.update([route({}, [A, B])], []);
    plan.update([route({}, [A])], []);
    assert.deepEqual(diffTexts(plan.diff()), EMPTY);
    // Serving endpoints matter for conntrack cleanup, not for maps.
    const alive = route({ servingEndpoints: [] }, [A]);
    assert.deepEqual(nextDiff(plan, [alive]), EMPTY);
  });

  it('returns an empty diff when a Route is added and removed, or removed and added, between diffs', () => {
    const plan = appliedPlan(route({}, [A]));
    const other = route({ id: 'other', clusterIP: '10.96.0.11' }, [B]);
    plan.update([other], []);
    plan.update([], ['other', route().id]);
    plan.update([route({}, [A])], []);
    assert.deepEqual(diffTexts(plan.diff()), EMPTY);
    assert.deepEqual(nextDiff(plan, [], ['never there']), EMPTY);
  });

  it('combines several updates of a Route in one diff', () => {
    const plan = appliedPlan(route({}, [A]));
    plan.update([route({}, [A, B])], []);
    plan.update([route({}, [A, B, C])], []);
    plan.update([route({}, [C])], []);
    assert.deepEqual(diffTexts(plan.diff()), {
      chains: [],
      deletes: [`endpoints: ${VIP} . tcp . 80 . 0 : ${A} . 8080`],
      adds: [`endpoints: ${VIP} . tcp . 80 . 0 : ${C} . 8080`, `hairpin-connections: ${C} . ${C}`],
      cleanup: [`hairpin-connections: ${A} . ${A}`],
    });
    assert.deepEqual(diffTexts(plan.diff()), EMPTY);
  });

  it('leaves updates during an iteration to the next diff', () => {
    const other = (...addresses: string[]) =>
      route({ id: 'other', clusterIP: '10.96.0.11' }, addresses);
    const plan = appliedPlan(route({}, [A]), other(A));
    plan.update([route({}, [B]), other(B)], []);
    const steps = plan.diffSteps();
    steps.next();
    // Back to the previous state, while the diff to the new one is computed.
    plan.update([route({}, [A]), other(A)], []);
    let last = steps.next();
    while (last.done !== true) last = steps.next();
    assert.deepEqual(
      diffTexts(last.value).adds,
      [
        `endpoints: ${VIP} . tcp . 80 . 0 : ${B} . 8080`,
        `endpoints: 10.96.0.11 . tcp . 80 . 0 : ${B} . 8080`,
        `hairpin-connections: ${B} . ${B}`,
      ].sort(),
    );
    assert.equal(diffTexts(plan.diff()).adds.length, 3);
    assert.deepEqual(diffTexts(plan.diff()), EMPTY);
  });

  it('moves a VIP between Services in one diff', () => {
    const [one, other] = [route({}, [A]), route({ id: 'other' }, [B])];
    const plan = appliedPlan(one);
    assert.deepEqual(nextDiff(plan, [other], [one.id]), {
      chains: [],
      deletes: [`endpoints: ${VIP} . tcp . 80 . 0 : ${A} . 8080`],
      adds: [`endpoints: ${VIP} . tcp . 80 . 0 : ${B} . 8080`, `hairpin-connections: ${B} . ${B}`],
      cleanup: [`hairpin-connections: ${A} . ${A}`],
    });
  });

  it('keeps a reference-counted element until the last Route is removed', () => {
    const ports = [80, 81].map((port) =>
      route({ id: `port ${port}`, match: { kind: 'port', protocol: 'TCP', port } }, [A]),
    );
    const plan = appliedPlan();
    const [first, second] = ports;
    assert.ok(first && second);
    assert.ok(nextDiff(plan, [first]).adds.includes(`cluster-ips: ${VIP}`));
    assert.deepEqual(
      nextDiff(plan, [second]).adds.map((text) => text.split(':')[0]),
      ['endpoints', 'service-ports'],
    );
    const removed = nextDiff(plan, [], [first.id]);
    assert.deepEqual(
      [...removed.deletes, ...removed.cleanup].map((text) => text.split(':')[0]),
      ['service-ports', 'endpoints'],
    );
    const last = nextDiff(plan, [], [second.id]);
    assert.deepEqual(last.deletes, [`service-ports: ${VIP} . tcp . 81 : goto internal-port-1`]);
    assert.ok(last.cleanup.includes(`hairpin-connections: ${A} . ${A}`));
    assert.ok(last.cleanup.includes(`cluster-ips: ${VIP}`));
    // Also in one update: the removed Route has the element that the added Route needs.
    const swapped = appliedPlan(first);
    swapped.update([second], [first.id]);
    const { adds, deletes, cleanup } = diffTexts(swapped.diff());
    assert.ok(
      ![...adds, ...deletes, ...cleanup].some((text) =>
        /hairpin-connections|cluster-ips/.test(text),
      ),
    );
    assert.deepEqual(snapshot(swapped), snapshot(appliedPlan(second)));
  });

  it('counts references of elements in a snapshot', () => {
    const [one, other] = [route({}, [A]), route({ id: 'other', clusterIP: '10.96.0.11' }, [A])];
    const plan = appliedPlan(one, other);
    assert.ok(
      !nextDiff(plan, [], [one.id]).cleanup.some((text) => /hairpin-connections/.test(text)),
    );
    assert.ok(
      nextDiff(plan, [], [other.id]).cleanup.some((text) => /hairpin-connections/.test(text)),
    );
    assert.deepEqual(snapshot(plan), []);
  });

  it('deletes an old range in the same phase that adds an overlapping one', () => {
    const only = (sourceRanges: readonly string[]) =>
      route({ clusterIP: undefined, loadBalancerIPs: [LB], sourceRanges }, [A]);
    const plan = appliedPlan(only(['10.0.0.0/8', '172.16.0.0/12']));
    assert.deepEqual(nextDiff(plan, [only(['10.1.0.0/16'])]), {
      chains: [],
      deletes: [`allowed-port-sources: ${LB} . tcp . 80 . 10.0.0.0-10.255.255.255`],
      adds: [`allowed-port-sources: ${LB} . tcp . 80 . 10.1.0.0-10.1.255.255`],
      // A packet in flight from an allowed source may still look this up.
      cleanup: [`allowed-port-sources: ${LB} . tcp . 80 . 172.16.0.0-172.31.255.255`],
    });
    const allPorts = appliedPlan(route({ match: ranges(100, 200) }, [A]));
    const { deletes, adds } = nextDiff(allPorts, [route({ match: ranges(150, 250) }, [A])]);
    assert.deepEqual(deletes, [`vip-ranges-10: ${VIP} . 1 . tcp . 100-200`]);
    assert.deepEqual(adds, [`vip-ranges-10: ${VIP} . 1 . tcp . 150-250`]);
  });

  it('returns changed Routes with their previous version in the diff', () => {
    const plan = appliedPlan(route({}, [A]));
    plan.update([route({}, [B]), route({ id: 'new' }, [C])], []);
    const { routes } = plan.diff();
    assert.deepEqual(
      routes.map((pair) => pair.map((planned) => planned?.route.clusterEndpoints[0]?.address)),
      [
        [A, B],
        [undefined, C],
      ],
    );
    assert.deepEqual(plan.diff().routes, []);
  });

  it('returns each new chain once, after its jump targets', () => {
    const plan = newPlan();
    snapshot(plan);
    const staticNames = new Set([...plan.chains()].map(({ name }) => name));
    const fields = { clusterIP: undefined, loadBalancerIPs: [LB], externalLocal: true };
    const sourceRanges = ['10.0.0.0/8'];
    const { chains } = nextDiff(plan, [route({ ...fields, sourceRanges }, [A])]);
    assert.deepEqual(chains, [
      'select-endpoint-port-1',
      'external-local-port-1-none',
      'firewall-port-external-local-port-1-none',
    ]);
    assert.deepEqual(nextDiff(plan, [route({ ...fields, id: 'b', sourceRanges }, [A])]).chains, []);
    assert.deepEqual(
      [...plan.chains()].map(({ name }) => name).filter((name) => !staticNames.has(name)),
      chains,
    );
    plan.update([], ['b', route().id]);
    plan.diff();
    snapshot(plan);
    assert.equal([...plan.chains()].length, staticNames.size, 'unused chains are not kept');
  });

  it('rewrites the check of cluster IPs when the Service CIDRs change, and nothing else', () => {
    const plan = newPlan();
    snapshot(plan);
    plan.setServiceCidrs(['10.96.0.0/16']);
    assert.deepEqual(plan.diff().chains, []);
    plan.setServiceCidrs(['10.97.0.0/16']);
    const { chains, adds, deletes } = plan.diff();
    assert.deepEqual(
      chains.map(({ name, rules }) => [name, rules.map(nftRuleText).at(-1)]),
      [['cluster-ips-check', 'ip daddr 10.97.0.0/16 drop']],
    );
    assert.deepEqual([adds, deletes], [[], []]);
    assert.equal(
      [...plan.chains()].find(({ name }) => name === 'cluster-ips-check'),
      chains[0],
    );
    assert.deepEqual(plan.diff().chains, []);
  });

  it('finds the Service port of an element', () => {
    const plan = appliedPlan(route({ name: 'default/web:http' }, [A]));
    const [{ elements = [] } = {}] = [...plan.snapshot()].slice(1);
    assert.ok(elements.length > 0);
    for (const element of elements) assert.equal(plan.servicePortOf(element), 'default/web:http');
    assert.equal(plan.servicePortOf({ map: 'cluster-ips', key: Buffer.alloc(4) }), undefined);
  });
});

describe('plan: Services that share a VIP', () => {
  const shared = (id: string, match: RouteMatch, fields: Partial<Route> = {}) =>
    route({ id, match, clusterIP: undefined, loadBalancerIPs: [LB], ...fields }, [A]);
  const port = (number: number): RouteMatch => ({ kind: 'port', protocol: 'TCP', port: number });

  it('gives port-range Services slots that do not depend on the order of updates', () => {
    const all = [
      shared('a', ranges(1, 9)),
      shared('b', ranges(10, 19)),
      shared('c', ranges(20, 29)),
      shared('d', ALL),
    ];
    const plan = appliedPlan();
    for (const one of all.toReversed()) nextDiff(plan, [one]);
    const forwards = appliedPlan(...all);
    assert.deepEqual(snapshot(plan), snapshot(forwards));
    const dispatch = snapshot(plan).filter((text) => /^(service-ips|range-|vip-ranges)/.test(text));
    assert.deepEqual(dispatch, [
      `range-services: ${LB} . 1 : goto external-ip-1-slot1`,
      `range-services: ${LB} . 2 : goto external-ip-1-slot2`,
      `range-services: ${LB} . 3 : goto external-ip-1-slot3`,
      `range-vips: ${LB} : goto ranges-1-3`,
      `service-ips: ${LB} : goto external-ip-1`,
      `vip-ranges-1: ${LB} . 1 . tcp . 1-9`,
      `vip-ranges-1: ${LB} . 2 . tcp . 10-19`,
      `vip-ranges-1: ${LB} . 3 . tcp . 20-29`,
    ]);
    nextDiff(plan, [], ['a']);
    assert.deepEqual(snapshot(plan), snapshot(appliedPlan(...all.slice(1))));
  });

  it('excludes a port beside an all-ports Service from its affinity', () => {
    const affinityUpdates = (plan: NftPlan) =>
      snapshot(plan).filter((text) => /^affinity-update/.test(text));
    const one = shared('one', port(80));
    const plan = appliedPlan(one);
    assert.deepEqual(affinityUpdates(plan), []);
    const { adds } = nextDiff(plan, [shared('all-ports', ALL)]);
    assert.ok(adds.includes(`affinity-update-ports: ${LB} . tcp . 80 : accept`));
    assert.deepEqual(affinityUpdates(plan), [`affinity-update-ports: ${LB} . tcp . 80 : accept`]);
    assert.deepEqual(nextDiff(plan, [], ['all-ports']).deletes.slice(0, 2), [
      `affinity-update-ports: ${LB} . tcp . 80 : accept`,
      `service-ips: ${LB} : goto external-ip-1`,
    ]);
    // In one update, in any order, and when the Service no longer serves all ports.
    plan.update([shared('all-ports', ranges(1, 9)), one], []);
    plan.diff();
    assert.equal(affinityUpdates(plan).length, 1);
    plan.update([shared('all-ports', port(81))], []);
    plan.diff();
    assert.deepEqual(affinityUpdates(plan), []);
    // Also when the all-ports Service moves to another VIP.
    plan.update([shared('all-ports', ALL)], []);
    plan.update([shared('all-ports', ALL, { loadBalancerIPs: ['203.0.113.2'] })], []);
    plan.diff();
    assert.deepEqual(affinityUpdates(plan), []);
  });

  it('keeps source ranges of a port and of a port range around it in separate sets', () => {
    const sourceRanges = ['10.0.0.0/8'];
    const one = shared('one', port(80), { sourceRanges });
    const allPorts = shared('all-ports', ranges(1, 100), {
      sourceRanges,
      healthCheckNodePort: 32_000,
    });
    const other = shared('other', ALL, { healthCheckNodePort: 32_000 });
    const plan = appliedPlan(one, allPorts, other);
    const removed = nextDiff(plan, [], ['all-ports']);
    const allowed = [...removed.deletes, ...removed.cleanup].filter((text) =>
      /^allowed/.test(text),
    );
    assert.deepEqual(allowed, [`allowed-vip-sources: ${LB} . 1 . 10.0.0.0-10.255.255.255`]);
    assert.ok(
      !removed.deletes.some((text) => /^health/.test(text)),
      'another Route still needs it',
    );
    assert.deepEqual(snapshot(plan), snapshot(appliedPlan(one, other)));
  });

  it('does not change Services on other VIPs', () => {
    const elsewhere = route({ id: 'elsewhere', clusterIP: '10.96.0.99' }, [A]);
    const plan = appliedPlan(shared('one', port(80)), elsewhere);
    plan.update([shared('all-ports', ALL)], []);
    const ids = plan.diff().routes.map(([, after]) => after?.route.id);
    assert.deepEqual(ids.sort(), ['all-ports', 'one']);
  });
});

describe('plan: node addresses', () => {
  const nodeAddresses = { addresses: ['192.0.2.7', '192.0.2.8'], primary: ['192.0.2.8'] };

  it('serves node ports on the primary address, or on selected addresses', () => {
    const ips = (fields: Partial<NftPlanOptions>) => {
      const plan = newPlan(fields);
      plan.setNodeAddresses({
        ...nodeAddresses,
        addresses: ['127.0.0.1', ...nodeAddresses.addresses],
      });
      return snapshot(plan);
    };
    assert.deepEqual(ips({}), ['node-port-ips: 192.0.2.8']);
    assert.deepEqual(ips({ nodePortSelection: ['all'] }), [
      'node-port-ips: 192.0.2.7',
      'node-port-ips: 192.0.2.8',
    ]);
    assert.deepEqual(ips({ nodePortSelection: ['192.0.2.7/32'] }), ['node-port-ips: 192.0.2.7']);
    assert.deepEqual(ips({ nodePortSelection: ['127.0.0.0/8'] }), []);
  });

  it('adds and deletes node port addresses', () => {
    const plan = newPlan({ nodePortSelection: ['all'] });
    snapshot(plan);
    assert.deepEqual(diffTexts(plan.diff()), EMPTY);
    plan.setNodeAddresses(nodeAddresses);
    assert.deepEqual(diffTexts(plan.diff()).adds, [
      'node-port-ips: 192.0.2.7',
      'node-port-ips: 192.0.2.8',
    ]);
    plan.setNodeAddresses({ addresses: ['192.0.2.8', '192.0.2.9'], primary: [] });
    assert.deepEqual(diffTexts(plan.diff()), {
      ...EMPTY,
      deletes: ['node-port-ips: 192.0.2.7'],
      adds: ['node-port-ips: 192.0.2.9'],
    });
    assert.deepEqual(diffTexts(plan.diff()), EMPTY);
  });

  it('allows the VIPs as sources when source ranges contain the node', () => {
    const plan = newPlan();
    const sourceRanges = ['192.0.2.0/25'];
    plan.update([route({ clusterIP: undefined, loadBalancerIPs: [LB], sourceRanges }, [A])], []);
    snapshot(plan);
    plan.setNodeAddresses(nodeAddresses);
    const own = `allowed-port-sources: ${LB} . tcp . 80 . ${LB}`;
    assert.deepEqual(diffTexts(plan.diff()).adds, [own, 'node-port-ips: 192.0.2.8']);
    plan.setNodeAddresses({ addresses: ['198.51.100.1'], primary: ['192.0.2.8'] });
    assert.deepEqual(diffTexts(plan.diff()).cleanup, [own]);
  });
});
