import assert from 'node:assert/strict';
import type { MapElement } from '../../nftables/element.ts';
import { NftPlan, type NftPlanOptions, type PlanDiff } from '../../nftables/plan.ts';
import type { Route, RouteMatch } from '../../services/route.ts';
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
/** As text, `map: element`, sorted. */
const texts = (elements: Iterable<MapElement>) =>
  Object.entries(textsOf(elements))
    .flatMap(([map, all]) => all.map((text) => `${map}: ${text}`))
    .sort();
const difference = ({ chains, deletes, adds, cleanup }: PlanDiff) => ({
  chains: chains.map(({ name }) => name),
  deletes: texts(deletes),
  adds: texts(adds),
  afterwards: texts(cleanup),
});
const NONE = { chains: [], deletes: [], adds: [], afterwards: [] };
const everything = (plan: NftPlan) =>
  texts([...plan.snapshot()].flatMap(({ elements }) => elements));

/** A plan whose Routes the kernel was given. */
function given(...routes: readonly Route[]): NftPlan {
  const plan = newPlan();
  plan.update(routes, []);
  everything(plan);
  return plan;
}
function step(plan: NftPlan, upserts: readonly Route[], removals: readonly string[] = []) {
  plan.update(upserts, removals);
  return difference(plan.diff());
}

describe('plan: what changes in the maps of nftables', () => {
  it('is, for an endpoint that comes, that endpoint and how many there are', () => {
    assert.deepEqual(step(given(route({}, [A])), [route({}, [A, B])]), {
      chains: ['internal-port-2'],
      deletes: [`service-ports: ${VIP} . tcp . 80 : goto internal-port-1`],
      adds: [
        `endpoints: ${VIP} . tcp . 80 . 1 : ${B} . 8080`,
        `hairpin-connections: ${B} . ${B}`,
        `service-ports: ${VIP} . tcp . 80 : goto internal-port-2`,
      ],
      afterwards: [],
    });
  });

  it('lets packets under way find an endpoint that goes', () => {
    const plan = given(route({}, [A, B]), route({ id: 'other', clusterIP: '10.96.0.11' }, [A]));
    assert.deepEqual(step(plan, [route({}, [A])]), {
      chains: [],
      deletes: [`service-ports: ${VIP} . tcp . 80 : goto internal-port-2`],
      adds: [`service-ports: ${VIP} . tcp . 80 : goto internal-port-1`],
      afterwards: [
        `endpoints: ${VIP} . tcp . 80 . 1 : ${B} . 8080`,
        `hairpin-connections: ${B} . ${B}`,
      ],
    });
  });

  it('rejects who came too early for a first endpoint, and nobody else comes through', () => {
    for (const match of [{ kind: 'port', protocol: 'TCP', port: 80 } as const, ranges(1, 9), ALL]) {
      const lone = (pods: readonly string[]) =>
        route({ match, clusterIP: undefined, externalIPs: [LB], nodePort: 30_080 }, pods);
      const plan = given(lone([]));
      const { adds, deletes, afterwards } = step(plan, [lone([A])]);
      assert.ok(adds.some((text) => /^service-/.test(text)));
      assert.deepEqual(
        deletes.filter((text) => /no-endpoint/.test(text)),
        [],
      );
      const late = afterwards.filter((text) => /no-endpoint/.test(text)).length;
      assert.equal(late, match.kind === 'port' ? 2 : 0);
    }
    // What takes the place of a range cannot be there beside it.
    const moved = step(given(route({ match: ranges(1, 9) })), [route({ match: ranges(5, 20) })]);
    assert.deepEqual(moved.deletes.filter((text) => /no-endpoint-ranges/.test(text)).length, 1);
  });

  it('is, for an endpoint that takes the place of another, that element', () => {
    assert.deepEqual(step(given(route({}, [A, B])), [route({}, [A, C])]), {
      chains: [],
      deletes: [`endpoints: ${VIP} . tcp . 80 . 1 : ${B} . 8080`],
      adds: [`endpoints: ${VIP} . tcp . 80 . 1 : ${C} . 8080`, `hairpin-connections: ${C} . ${C}`],
      afterwards: [`hairpin-connections: ${B} . ${B}`],
    });
  });

  it('is nothing for a Route that is what it was', () => {
    const plan = given(route({}, [A]));
    assert.deepEqual(step(plan, [route({}, [A])]), NONE);
    plan.update([route({}, [A, B])], []);
    plan.update([route({}, [A])], []);
    assert.deepEqual(difference(plan.diff()), NONE);
    // Endpoints that only tell of flows are nothing to the maps.
    const alive = route({ servingEndpoints: [] }, [A]);
    assert.deepEqual(step(plan, [alive]), NONE);
  });

  it('is nothing for a Route that comes and goes, or goes and comes, between', () => {
    const plan = given(route({}, [A]));
    const other = route({ id: 'other', clusterIP: '10.96.0.11' }, [B]);
    plan.update([other], []);
    plan.update([], ['other', route().id]);
    plan.update([route({}, [A])], []);
    assert.deepEqual(difference(plan.diff()), NONE);
    assert.deepEqual(step(plan, [], ['never there']), NONE);
  });

  it('is what several updates come to', () => {
    const plan = given(route({}, [A]));
    plan.update([route({}, [A, B])], []);
    plan.update([route({}, [A, B, C])], []);
    plan.update([route({}, [C])], []);
    assert.deepEqual(difference(plan.diff()), {
      chains: [],
      deletes: [`endpoints: ${VIP} . tcp . 80 . 0 : ${A} . 8080`],
      adds: [`endpoints: ${VIP} . tcp . 80 . 0 : ${C} . 8080`, `hairpin-connections: ${C} . ${C}`],
      afterwards: [`hairpin-connections: ${A} . ${A}`],
    });
    assert.deepEqual(difference(plan.diff()), NONE);
  });

  it('is for the next time if it comes while the rest is taken', () => {
    const other = (...addresses: string[]) =>
      route({ id: 'other', clusterIP: '10.96.0.11' }, addresses);
    const plan = given(route({}, [A]), other(A));
    plan.update([route({}, [B]), other(B)], []);
    const steps = plan.diffSteps();
    steps.next();
    // Back to what the kernel had, of which it is being given another.
    plan.update([route({}, [A]), other(A)], []);
    let last = steps.next();
    while (last.done !== true) last = steps.next();
    assert.deepEqual(
      difference(last.value).adds,
      [
        `endpoints: ${VIP} . tcp . 80 . 0 : ${B} . 8080`,
        `endpoints: 10.96.0.11 . tcp . 80 . 0 : ${B} . 8080`,
        `hairpin-connections: ${B} . ${B}`,
      ].sort(),
    );
    assert.equal(difference(plan.diff()).adds.length, 3);
    assert.deepEqual(difference(plan.diff()), NONE);
  });

  it('has a VIP that moves between Services move in one go', () => {
    const [one, other] = [route({}, [A]), route({ id: 'other' }, [B])];
    const plan = given(one);
    assert.deepEqual(step(plan, [other], [one.id]), {
      chains: [],
      deletes: [`endpoints: ${VIP} . tcp . 80 . 0 : ${A} . 8080`],
      adds: [`endpoints: ${VIP} . tcp . 80 . 0 : ${B} . 8080`, `hairpin-connections: ${B} . ${B}`],
      afterwards: [`hairpin-connections: ${A} . ${A}`],
    });
  });

  it('keeps what several Routes ask for until none does', () => {
    const ports = [80, 81].map((port) =>
      route({ id: `port ${port}`, match: { kind: 'port', protocol: 'TCP', port } }, [A]),
    );
    const plan = given();
    const [first, second] = ports;
    assert.ok(first && second);
    assert.ok(step(plan, [first]).adds.includes(`cluster-ips: ${VIP}`));
    assert.deepEqual(
      step(plan, [second]).adds.map((text) => text.split(':')[0]),
      ['endpoints', 'service-ports'],
    );
    const gone = step(plan, [], [first.id]);
    assert.deepEqual(
      [...gone.deletes, ...gone.afterwards].map((text) => text.split(':')[0]),
      ['service-ports', 'endpoints'],
    );
    const last = step(plan, [], [second.id]);
    assert.deepEqual(last.deletes, [`service-ports: ${VIP} . tcp . 81 : goto internal-port-1`]);
    assert.ok(last.afterwards.includes(`hairpin-connections: ${A} . ${A}`));
    assert.ok(last.afterwards.includes(`cluster-ips: ${VIP}`));
    // In one update, too: the one that goes has what the one that comes needs.
    const swapped = given(first);
    swapped.update([second], [first.id]);
    const { adds, deletes, afterwards } = difference(swapped.diff());
    assert.ok(
      ![...adds, ...deletes, ...afterwards].some((text) =>
        /hairpin-connections|cluster-ips/.test(text),
      ),
    );
    assert.deepEqual(everything(swapped), everything(given(second)));
  });

  it('counts what everything holds, too', () => {
    const [one, other] = [route({}, [A]), route({ id: 'other', clusterIP: '10.96.0.11' }, [A])];
    const plan = given(one, other);
    assert.ok(
      !step(plan, [], [one.id]).afterwards.some((text) => /hairpin-connections/.test(text)),
    );
    assert.ok(
      step(plan, [], [other.id]).afterwards.some((text) => /hairpin-connections/.test(text)),
    );
    assert.deepEqual(everything(plan), []);
  });

  it('has a range that overlaps with an old one come as that goes', () => {
    const only = (sourceRanges: readonly string[]) =>
      route({ clusterIP: undefined, loadBalancerIPs: [LB], sourceRanges }, [A]);
    const plan = given(only(['10.0.0.0/8', '172.16.0.0/12']));
    assert.deepEqual(step(plan, [only(['10.1.0.0/16'])]), {
      chains: [],
      deletes: [`allowed-ports: ${LB} . tcp . 80 . 10.0.0.0-10.255.255.255`],
      adds: [`allowed-ports: ${LB} . tcp . 80 . 10.1.0.0-10.1.255.255`],
      // Who was let in may be on the way there.
      afterwards: [`allowed-ports: ${LB} . tcp . 80 . 172.16.0.0-172.31.255.255`],
    });
    const wide = given(route({ match: ranges(100, 200) }, [A]));
    const { deletes, adds } = step(wide, [route({ match: ranges(150, 250) }, [A])]);
    assert.ok(deletes.some((text) => text.startsWith(`service-ranges: ${VIP} . tcp . 100-200 `)));
    assert.ok(adds.some((text) => text.startsWith(`service-ranges: ${VIP} . tcp . 150-250 `)));
  });

  it('tells which Routes it is of, as they were and are', () => {
    const plan = given(route({}, [A]));
    plan.update([route({}, [B]), route({ id: 'new' }, [C])], []);
    const { routes } = plan.diff();
    assert.deepEqual(
      routes.map((pair) => pair.map((placed) => placed?.route.clusterEndpoints[0]?.address)),
      [
        [A, B],
        [undefined, C],
      ],
    );
    assert.deepEqual(plan.diff().routes, []);
  });

  it('has each chain once, with those that it leads to, before', () => {
    const plan = newPlan();
    everything(plan);
    const standing = new Set([...plan.chains()].map(({ name }) => name));
    const fields = { clusterIP: undefined, loadBalancerIPs: [LB], externalLocal: true };
    const sourceRanges = ['10.0.0.0/8'];
    const { chains } = step(plan, [route({ ...fields, sourceRanges }, [A])]);
    assert.deepEqual(chains, [
      'select-endpoint-port-1',
      'external-local-port-1-none',
      'firewall-port-external-local-port-1-none',
    ]);
    assert.deepEqual(step(plan, [route({ ...fields, id: 'b', sourceRanges }, [A])]).chains, []);
    assert.deepEqual(
      [...plan.chains()].map(({ name }) => name).filter((name) => !standing.has(name)),
      chains,
    );
    plan.update([], ['b', route().id]);
    plan.diff();
    everything(plan);
    assert.equal([...plan.chains()].length, standing.size, 'what nothing leads to is not kept');
  });

  it('names the Service of an element', () => {
    const plan = given(route({ name: 'default/web:http' }, [A]));
    const [{ elements = [] } = {}] = [...plan.snapshot()].slice(1);
    assert.ok(elements.length > 0);
    for (const element of elements) assert.equal(plan.servicePortOf(element), 'default/web:http');
    assert.equal(plan.servicePortOf({ map: 'cluster-ips', key: Buffer.alloc(4) }), undefined);
  });
});

describe('plan: Services on one VIP, in nftables', () => {
  const shared = (id: string, match: RouteMatch, fields: Partial<Route> = {}) =>
    route({ id, match, clusterIP: undefined, loadBalancerIPs: [LB], ...fields }, [A]);
  const port = (number: number): RouteMatch => ({ kind: 'port', protocol: 'TCP', port: number });

  it('ranges are told apart by slots, which history does not decide', () => {
    const all = [
      shared('a', ranges(1, 9)),
      shared('b', ranges(10, 19)),
      shared('c', ranges(20, 29)),
      shared('d', ALL),
    ];
    const plan = given();
    for (const one of all.toReversed()) step(plan, [one]);
    const forwards = given(...all);
    assert.deepEqual(everything(plan), everything(forwards));
    const leads = everything(plan).filter((text) => /^service-(ips|ranges):/.test(text));
    assert.deepEqual(leads, [
      `service-ips: ${LB} : goto external-ip-1`,
      `service-ranges: ${LB} . tcp . 1-9 : goto external-ip-1-slot1`,
      `service-ranges: ${LB} . tcp . 10-19 : goto external-ip-1-slot2`,
      `service-ranges: ${LB} . tcp . 20-29 : goto external-ip-1-slot3`,
    ]);
    step(plan, [], ['a']);
    assert.deepEqual(everything(plan), everything(given(...all.slice(1))));
  });

  it('a port beside all ports is not remembered, one alone needs nothing', () => {
    const notes = (plan: NftPlan) =>
      everything(plan).filter((text) => /^affinity-update/.test(text));
    const one = shared('one', port(80));
    const plan = given(one);
    assert.deepEqual(notes(plan), []);
    const { adds } = step(plan, [shared('wide', ALL)]);
    assert.ok(adds.includes(`affinity-update-ports: ${LB} . tcp . 80 : accept`));
    assert.deepEqual(notes(plan), [`affinity-update-ports: ${LB} . tcp . 80 : accept`]);
    assert.deepEqual(step(plan, [], ['wide']).deletes.slice(0, 2), [
      `affinity-update-ports: ${LB} . tcp . 80 : accept`,
      `service-ips: ${LB} : goto external-ip-1`,
    ]);
    // In one update, in whatever order, and when it stops to be of all ports.
    plan.update([shared('wide', ranges(1, 9)), one], []);
    plan.diff();
    assert.equal(notes(plan).length, 1);
    plan.update([shared('wide', port(81))], []);
    plan.diff();
    assert.deepEqual(notes(plan), []);
    // Nor does a Service that leaves the VIP stay its neighbour.
    plan.update([shared('wide', ALL)], []);
    plan.update([shared('wide', ALL, { loadBalancerIPs: ['203.0.113.2'] })], []);
    plan.diff();
    assert.deepEqual(notes(plan), []);
  });

  it('source ranges of a port and of a range around it are told apart', () => {
    const sourceRanges = ['10.0.0.0/8'];
    const one = shared('one', port(80), { sourceRanges });
    const wide = shared('wide', ranges(1, 100), { sourceRanges, healthCheckNodePort: 32_000 });
    const other = shared('other', ALL, { healthCheckNodePort: 32_000 });
    const plan = given(one, wide, other);
    const gone = step(plan, [], ['wide']);
    const allowed = [...gone.deletes, ...gone.afterwards].filter((text) => /^allowed/.test(text));
    assert.deepEqual(allowed, [`allowed-ranges: ${LB} . tcp . 1-100 . 10.0.0.0-10.255.255.255`]);
    assert.ok(!gone.deletes.some((text) => /^health/.test(text)), 'another still asks for it');
    assert.deepEqual(everything(plan), everything(given(one, other)));
  });

  it('another Service elsewhere is left alone', () => {
    const elsewhere = route({ id: 'elsewhere', clusterIP: '10.96.0.99' }, [A]);
    const plan = given(shared('one', port(80)), elsewhere);
    plan.update([shared('wide', ALL)], []);
    const ids = plan.diff().routes.map(([, after]) => after?.route.id);
    assert.deepEqual(ids.sort(), ['one', 'wide']);
  });
});

describe('plan: what nftables know of the node', () => {
  const facts = { addresses: ['192.0.2.7', '192.0.2.8'], primary: ['192.0.2.8'] };

  it('node ports are served on its first address, or those that are asked for', () => {
    const ips = (fields: Partial<NftPlanOptions>) => {
      const plan = newPlan(fields);
      plan.setNodeAddresses({ ...facts, addresses: ['127.0.0.1', ...facts.addresses] });
      return everything(plan);
    };
    assert.deepEqual(ips({}), ['node-port-ips: 192.0.2.8']);
    assert.deepEqual(ips({ nodePortSelection: ['all'] }), [
      'node-port-ips: 192.0.2.7',
      'node-port-ips: 192.0.2.8',
    ]);
    assert.deepEqual(ips({ nodePortSelection: ['192.0.2.7/32'] }), ['node-port-ips: 192.0.2.7']);
    assert.deepEqual(ips({ nodePortSelection: ['127.0.0.0/8'] }), []);
  });

  it('addresses come and go', () => {
    const plan = newPlan({ nodePortSelection: ['all'] });
    everything(plan);
    assert.deepEqual(difference(plan.diff()), NONE);
    plan.setNodeAddresses(facts);
    assert.deepEqual(difference(plan.diff()).adds, [
      'node-port-ips: 192.0.2.7',
      'node-port-ips: 192.0.2.8',
    ]);
    plan.setNodeAddresses({ addresses: ['192.0.2.8', '192.0.2.9'], primary: [] });
    assert.deepEqual(difference(plan.diff()), {
      ...NONE,
      deletes: ['node-port-ips: 192.0.2.7'],
      adds: ['node-port-ips: 192.0.2.9'],
    });
    assert.deepEqual(difference(plan.diff()), NONE);
  });

  it('source ranges that have it inside let in the VIPs', () => {
    const plan = newPlan();
    const sourceRanges = ['192.0.2.0/25'];
    plan.update([route({ clusterIP: undefined, loadBalancerIPs: [LB], sourceRanges }, [A])], []);
    everything(plan);
    plan.setNodeAddresses(facts);
    const own = `allowed-ports: ${LB} . tcp . 80 . ${LB}`;
    assert.deepEqual(difference(plan.diff()).adds, [own, 'node-port-ips: 192.0.2.8']);
    plan.setNodeAddresses({ addresses: ['198.51.100.1'], primary: ['192.0.2.8'] });
    assert.deepEqual(difference(plan.diff()).afterwards, [own]);
  });
});
