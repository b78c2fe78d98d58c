/** Which kernel changes follow from changes of API objects. */
import assert from 'node:assert/strict';
import type { CidrGroup, Pod, PolicyRule, PortMatch } from '../../../api/policy-objects.ts';
import { AppliedState } from '../../../policy/compile/applied-state.ts';
import type { PolicyChange, PolicyElement } from '../../../policy/compile/change.ts';
import { PolicyModel } from '../../../policy/model/model.ts';
import { contentOf, ModelHarness } from '../harness.ts';
import {
  adminPolicy,
  baselinePolicy,
  group,
  HERE,
  labelled,
  namespace,
  network,
  networkPolicy,
  node,
  peerPods,
  pod,
  requirement,
  rule,
  type TestObject,
  THERE,
  tcp,
} from '../objects.ts';

const web = (number: number, fields: Partial<Pod> = {}) =>
  pod(`web-${number}`, { labels: { app: 'web' }, addresses: [`10.0.0.${number}`], ...fields });
const db = (number: number, fields: Partial<Pod> = {}) =>
  pod(`db-${number}`, { labels: { app: 'db' }, addresses: [`10.0.1.${number}`], ...fields });

const WEB_ONLY = { namespaces: 'default', pods: labelled({ app: 'web' }) };
const fromDb = rule({ peers: [peerPods(labelled({ app: 'db' }))], ports: [tcp(80)] });
/** Selects the pods `web` and allows ingress from the pods `db`. */
const POLICY = networkPolicy('p', { subject: WEB_ONLY, ingress: [fromDb] });

/** A model whose initial state was applied. */
function synced(...objects: TestObject[]): ModelHarness {
  const agent = new ModelHarness(objects);
  agent.sync();
  return agent;
}

/** The change of IPv4; fails if another IP family has one. */
function onlyChange(agent: ModelHarness): PolicyChange {
  const changes = agent.sync();
  assert.deepEqual(
    changes.map(({ family }) => family),
    ['IPv4'],
  );
  return changes[0] as PolicyChange;
}

const none = { prepare: [], remove: [], add: [], chains: [], cleanup: [], cleanupChains: [] };

/** Elements as sorted text, without the ids of lists and policy sets. */
function texts(elements: Iterable<PolicyElement>): string[] {
  return [...elements]
    .map(({ set, ...rest }) => {
      const { list: _, policySetId: __, ...fields } = { list: 0, policySetId: 0, ...rest };
      return [set, ...Object.values(fields)].join(' ');
    })
    .sort();
}

function appliedElements(agent: ModelHarness, set?: PolicyElement['set']): PolicyElement[] {
  const elements = [...agent.applied.snapshot('IPv4').elements];
  return set === undefined ? elements : elements.filter((element) => element.set === set);
}

describe('changes: kernel changes computed from API objects', () => {
  it('returns everything at the first call and nothing at the second', () => {
    const agent = new ModelHarness([POLICY, web(1), db(1)]);
    const [first] = agent.sync();
    assert.deepEqual(texts(first?.prepare ?? []), ['ports 6 80 80']);
    assert.deepEqual(texts(first?.add ?? []), [
      'dns-bypass 10.0.0.1',
      'dns-bypass 10.0.1.1',
      'hairpin-pods 10.0.0.1',
      'hairpin-pods 10.0.1.1',
      'ingress-pods 10.0.0.1',
      'peers 10.0.1.1',
      'selected-pods 10.0.0.1',
    ]);
    assert.deepEqual(
      first?.chains.map(({ direction }) => direction),
      ['ingress'],
    );
    assert.deepEqual([first?.remove, first?.cleanup, first?.cleanupChains], [[], [], []]);
    assert.deepEqual(agent.sync(), []);
  });

  it('returns the same changes when objects change during precompute()', async () => {
    const objects = [POLICY, namespace('other'), web(1), db(1), db(2, { nodeName: THERE })];
    const late = [
      namespace('default', { team: 'x' }),
      networkPolicy('q', { subject: WEB_ONLY, ingress: [fromDb, rule({ ports: [tcp(81)] })] }),
      db(1, { labels: { app: 'web' } }),
      db(3),
    ];
    const agent = new ModelHarness(objects);
    const ahead = agent.model.precompute();
    for (const object of late) agent.upsert(object);
    agent.remove('Pod', 'default/db-2');
    await ahead;
    agent.sync();
    const other = synced(...objects, ...late);
    other.remove('Pod', 'default/db-2');
    other.sync();
    assert.deepEqual(texts(appliedElements(agent)), texts(appliedElements(other)));
  });

  it('adds only the elements of a new pod on this node', () => {
    const agent = synced(POLICY, web(1), db(1));
    agent.upsert(web(2));
    const change = onlyChange(agent);
    assert.deepEqual(texts(change.add), [
      'dns-bypass 10.0.0.2',
      'hairpin-pods 10.0.0.2',
      'ingress-pods 10.0.0.2',
      'selected-pods 10.0.0.2',
    ]);
    assert.deepEqual({ ...change, add: [] }, { family: 'IPv4', ...none });
  });

  it('adds one element for each list when a pod is created on another node', () => {
    const agent = synced(POLICY, web(1), db(1));
    agent.upsert(db(2, { nodeName: THERE }));
    const change = onlyChange(agent);
    assert.deepEqual(texts(change.add), ['peers 10.0.1.2']);
    assert.deepEqual({ ...change, add: [] }, { family: 'IPv4', ...none });
    agent.upsert(web(3, { nodeName: THERE }));
    assert.deepEqual(agent.sync(), [], 'no list contains the pod');
  });

  it('removes the elements of a deleted pod', () => {
    const agent = synced(POLICY, web(1), web(2), db(1));
    agent.remove('Pod', 'default/web-2');
    assert.deepEqual(texts(onlyChange(agent).remove), [
      'dns-bypass 10.0.0.2',
      'hairpin-pods 10.0.0.2',
      'ingress-pods 10.0.0.2',
      'selected-pods 10.0.0.2',
    ]);
    agent.remove('Pod', 'default/db-1');
    assert.deepEqual(texts(onlyChange(agent).remove), [
      'dns-bypass 10.0.1.1',
      'hairpin-pods 10.0.1.1',
      'peers 10.0.1.1',
    ]);
  });

  it('changes only the affected elements when a pod is relabelled', () => {
    const agent = synced(POLICY, web(1), web(2), db(1), db(2));
    agent.upsert(web(2, { labels: { app: 'db' } }));
    const { remove, add, ...rest } = onlyChange(agent);
    assert.deepEqual(
      [texts(remove), texts(add)],
      [['ingress-pods 10.0.0.2', 'selected-pods 10.0.0.2'], ['peers 10.0.0.2']],
    );
    assert.deepEqual({ ...rest, remove: [], add: [] }, { family: 'IPv4', ...none });
  });

  it('returns nothing when a pod change does not affect policies', () => {
    const agent = synced(POLICY, web(1), db(1));
    agent.upsert(web(1));
    agent.upsert(db(1, { nodeName: HERE }));
    assert.deepEqual(agent.sync(), []);
  });

  it('returns nothing when changes are reverted before takeChanges()', () => {
    const agent = synced(POLICY, web(1), db(1));
    agent.upsert(web(2));
    agent.upsert(networkPolicy('q', { ingress: [fromDb, rule({ peers: [peerPods([])] })] }));
    agent.remove('NetworkPolicy', 'default/q');
    agent.remove('Pod', 'default/web-2');
    agent.remove('NetworkPolicy', POLICY.key);
    agent.upsert(POLICY);
    assert.deepEqual(agent.sync(), []);
  });

  it('keeps a list when one policy stops using it and another starts', () => {
    const agent = synced(
      POLICY,
      networkPolicy('q', { subject: WEB_ONLY, ingress: [] }),
      web(1),
      db(1),
    );
    agent.upsert(
      networkPolicy('p', {
        subject: { namespaces: 'default', pods: labelled({ app: 'x' }) },
        ingress: [fromDb],
      }),
    );
    agent.upsert(networkPolicy('q', { subject: WEB_ONLY, ingress: [fromDb] }));
    const { prepare, remove, add, cleanup } = onlyOf(agent.sync(), 'IPv4');
    assert.deepEqual([prepare, cleanup], [[], []]);
    assert.deepEqual(
      [texts(remove), texts(add)],
      [['ingress-pods 10.0.0.1'], ['ingress-pods 10.0.0.1']],
    );
    agent.remove('NetworkPolicy', 'default/q');
    assert.deepEqual(texts(onlyOf(agent.sync(), 'IPv4').cleanup), [
      'peers 10.0.1.1',
      'ports 6 80 80',
    ]);
  });

  it('compiles the policy set of a pod before the pod has an address', () => {
    const agent = synced(POLICY, db(1), web(1, { addresses: [] }));
    assert.equal(agent.applied.snapshot('IPv4').chains.length, 1);
    agent.upsert(web(1));
    const change = onlyChange(agent);
    assert.deepEqual(texts(change.add), [
      'dns-bypass 10.0.0.1',
      'hairpin-pods 10.0.0.1',
      'ingress-pods 10.0.0.1',
      'selected-pods 10.0.0.1',
    ]);
    assert.deepEqual({ ...change, add: [] }, { family: 'IPv4', ...none });
  });

  describe('policy sets', () => {
    const policySetIds = (agent: ModelHarness) =>
      new Map(
        appliedElements(agent).flatMap((each) =>
          'policySetId' in each ? [[`${each.set} ${each.address}`, each.policySetId] as const] : [],
        ),
      );

    it('are shared by pods with the same policies', () => {
      const agent = synced(
        POLICY,
        networkPolicy('q', { ingress: [] }),
        web(1),
        web(2, { labels: { app: 'web', more: 'x' } }),
        db(1),
      );
      const at = policySetIds(agent);
      assert.equal(at.get('ingress-pods 10.0.0.1'), at.get('ingress-pods 10.0.0.2'));
      assert.notEqual(at.get('ingress-pods 10.0.0.1'), at.get('ingress-pods 10.0.1.1'));
      assert.equal(agent.applied.snapshot('IPv4').chains.length, 2);
    });

    it('keep their id when a policy changes its rules', () => {
      const agent = synced(POLICY, web(1), db(1));
      const before = policySetIds(agent);
      agent.upsert(networkPolicy('p', { subject: WEB_ONLY, ingress: [rule()] }));
      const change = onlyOf(agent.sync(), 'IPv4');
      assert.deepEqual(
        change.chains.map(({ policySetId }) => policySetId),
        [...before.values()],
      );
      assert.deepEqual([change.add, change.remove], [[], []]);
      assert.deepEqual(policySetIds(agent), before);
      agent.remove('NetworkPolicy', POLICY.key);
      agent.upsert(POLICY);
      agent.sync();
      assert.deepEqual(policySetIds(agent), before);
    });

    it('are replaced when another policy selects the pod', () => {
      const agent = synced(POLICY, web(1), db(1));
      const [before] = policySetIds(agent).values();
      agent.upsert(networkPolicy('q', { subject: WEB_ONLY, ingress: [] }));
      const { remove, add, chains, cleanupChains } = onlyOf(agent.sync(), 'IPv4');
      assert.deepEqual(
        [texts(remove), texts(add)],
        [['ingress-pods 10.0.0.1'], ['ingress-pods 10.0.0.1']],
      );
      assert.equal(chains.length, 1);
      assert.deepEqual(cleanupChains, [{ direction: 'ingress', policySetId: before }]);
    });

    it('are rewritten when the priority of a policy changes the order', () => {
      const first = adminPolicy('a', { priority: 1, ingress: [rule()] });
      const agent = synced(
        first,
        adminPolicy('b', { priority: 2, ingress: [rule({ action: 'Deny' })] }),
        web(1),
      );
      agent.upsert({ ...first, priority: 3 });
      const change = onlyOf(agent.sync(), 'IPv4');
      assert.deepEqual(
        change.chains.map(({ admin }) => admin.map(({ verdict }) => verdict)),
        [['deny-admin', 'allow']],
      );
      assert.deepEqual({ ...change, chains: [] }, { family: 'IPv4', ...none });
    });

    for (const [title, changed] of [
      ['ports', rule({ ...fromDb, ports: [tcp(81)] })],
      ['peers', rule({ ...fromDb, peers: [peerPods([])] })],
      ['action', rule({ ...fromDb, action: 'Pass' })],
      ['number of rules', undefined],
    ] as const) {
      it(`are rewritten when a rule changes its ${title}`, () => {
        const policy = (...ingress: PolicyRule[]) =>
          adminPolicy('a', { subject: WEB_ONLY, ingress });
        const agent = synced(policy(fromDb), web(1), db(1));
        agent.upsert(policy(...(changed === undefined ? [fromDb, fromDb] : [changed])));
        const { chains, add, remove } = onlyOf(agent.sync(), 'IPv4');
        assert.equal(chains.length, 1);
        assert.ok(
          [...add, ...remove].every(({ set }) => set === 'peers'),
          'the policy set id stays',
        );
      });
    }

    it('are rewritten when the index of a rule changes, because its comment contains it', () => {
      const nothing = rule({ ports: [] });
      const agent = synced(networkPolicy('p', { ingress: [fromDb] }), web(1));
      agent.upsert(networkPolicy('p', { ingress: [nothing, fromDb] }));
      const { chains } = onlyOf(agent.sync(), 'IPv4');
      assert.equal(chains[0]?.lowerTiers[0]?.comment, 'NetworkPolicy default/p spec.ingress[1]');
    });

    it('exist for a NetworkPolicy without rules, but not for an AdminNetworkPolicy without rules', () => {
      const agent = synced(adminPolicy('a', { ingress: [], egress: [] }), web(1));
      assert.deepEqual(agent.applied.snapshot('IPv4').chains, []);
      agent.upsert(networkPolicy('p', { ingress: [] }));
      agent.sync();
      assert.equal(agent.applied.snapshot('IPv4').chains.length, 1);
    });

    it('omit the Baseline tier when a NetworkPolicy isolates the pod', () => {
      const agent = synced(POLICY, web(1));
      const content = contentOf(agent, 'IPv4');
      agent.upsert(baselinePolicy({ subject: WEB_ONLY, ingress: [fromDb] }));
      assert.deepEqual(agent.sync(), []);
      assert.deepEqual(contentOf(agent, 'IPv4'), content);
    });

    it('have rule comments with policy and rule', () => {
      const agent = synced(
        POLICY,
        adminPolicy('a', { ingress: [rule({ action: 'Deny', ports: [tcp(1)] }), rule()] }),
        web(1),
      );
      const [chain] = agent.applied.snapshot('IPv4').chains;
      assert.deepEqual(
        [chain?.admin, chain?.lowerTiers].map((rules) => rules?.map(({ comment }) => comment)),
        [
          ['AdminNetworkPolicy a spec.ingress[0]', 'AdminNetworkPolicy a spec.ingress[1]'],
          ['NetworkPolicy default/p spec.ingress[0]', 'default deny: isolated by NetworkPolicy'],
        ],
      );
    });

    it('deny with the tier of the policy', () => {
      const ingress = [rule({ action: 'Deny' })];
      const agent = synced(
        adminPolicy('a', { ingress }),
        baselinePolicy({ ingress }),
        networkPolicy('p', { subject: WEB_ONLY, ingress: [] }),
        web(1),
        db(1),
      );
      assert.deepEqual(
        agent.applied
          .snapshot('IPv4')
          .chains.map(({ admin, lowerTiers }) =>
            [...admin, ...lowerTiers].map(({ verdict }) => verdict).join(),
          )
          .sort(),
        ['deny-admin,deny-baseline', 'deny-admin,deny-network-policy'],
      );
    });

    it('omit rules that match nothing', () => {
      const rules = [rule({ peers: [] }), rule({ ports: [] })];
      const agent = synced(networkPolicy('p', { ingress: rules, egress: rules }), web(1));
      assert.deepEqual(
        agent.applied
          .snapshot('IPv4')
          .chains.map(({ lowerTiers }) => lowerTiers.map(({ verdict }) => verdict)),
        [['deny-network-policy'], ['deny-network-policy']],
      );
    });
  });

  describe('peer lists and port lists', () => {
    const lists = (agent: ModelHarness) =>
      new Set(appliedElements(agent).flatMap((each) => ('list' in each ? [each.list] : [])));

    it('are shared by rules with equal peers or ports in any order', () => {
      const peers = [
        peerPods(labelled({ app: 'db' })),
        network('10.1.0.0/16', '10.1.1.0/24', '10.1.2.0/24'),
        { kind: 'cidrGroups', selector: [] },
      ] as const;
      const reversed = [
        peers[2],
        network('10.1.0.0/16', '10.1.2.0/24', '10.1.1.0/24'),
        peers[0],
        peers[0],
      ];
      const agent = synced(
        networkPolicy('p', { ingress: [rule({ peers, ports: [tcp(80), tcp(81, 90)] })] }),
        networkPolicy('q', {
          ingress: [rule({ peers: reversed, ports: [tcp(85, 90), tcp(80, 84)] })],
        }),
        web(1),
        db(1),
      );
      const [chain] = agent.applied.snapshot('IPv4').chains;
      const [one, other] = chain?.lowerTiers ?? [];
      assert.ok(one?.peers !== undefined);
      assert.deepEqual([one.peers, one.ports], [other?.peers, other?.ports]);
      assert.equal(lists(agent).size, 2);
    });

    it('are shared by both directions when ports are not named', () => {
      const rules = [rule({ ports: [tcp(80)] })];
      const agent = synced(networkPolicy('p', { ingress: rules, egress: rules }), web(1));
      assert.equal(lists(agent).size, 1);
    });

    const http = [{ name: 'http', protocol: 'TCP' as const, port: 8080 }];
    const named: PortMatch = { protocol: 'TCP', name: 'http' };
    const selector = labelled({ app: 'db' });

    it('of named ports are shared by rules with equal peers in any order', () => {
      const peers = [peerPods(selector), peerPods([], 'red')];
      const egress = [
        rule({ peers, ports: [named] }),
        rule({ peers: peers.toReversed(), ports: [named] }),
      ];
      const agent = synced(networkPolicy('p', { egress }), web(1), db(1, { namedPorts: http }));
      assert.equal(appliedElements(agent, 'named-ports').length, 1);
    });

    for (const [title, one, other] of [
      [
        'exceptions',
        { peers: [network('10.0.0.0/8', '10.1.0.0/16')] },
        { peers: [network('10.0.0.0/8')] },
      ],
      [
        'kinds of peers',
        { peers: [{ kind: 'nodes', selector }] },
        { peers: [{ kind: 'cidrGroups', selector }] },
      ],
      ['namespaces', { peers: [peerPods(selector, 'red')] }, { peers: [peerPods(selector, [])] }],
      [
        'labels',
        { peers: [peerPods(selector)] },
        { peers: [peerPods([requirement('app', 'NotIn', 'db')])] },
      ],
      ['protocols', { ports: [tcp(80)] }, { ports: [{ protocol: 'UDP', first: 80, last: 80 }] }],
      ['names', { ports: [named] }, { ports: [{ protocol: 'TCP', name: 'https' }] }],
      [
        'protocols of names',
        { ports: [named] },
        { ports: [{ protocol: undefined, name: 'http' }] },
      ],
      [
        'peers that give names',
        { ports: [named], peers: [peerPods(selector)] },
        { ports: [named], peers: [peerPods(labelled({ app: 'web' }))] },
      ],
    ] as const satisfies readonly (readonly [string, Partial<PolicyRule>, Partial<PolicyRule>])[]) {
      it(`are not shared by rules with different ${title}`, () => {
        const agent = synced(networkPolicy('p', { egress: [rule(one), rule(other)] }), web(1));
        const [first, second] = agent.applied.snapshot('IPv4').chains[0]?.lowerTiers ?? [];
        const part = 'ports' in one ? 'ports' : 'peers';
        assert.ok(first?.[part] !== undefined && second?.[part] !== undefined);
        assert.notEqual(first[part].id, second[part].id);
      });
    }

    it('are not written for pods on other nodes', () => {
      const agent = synced(POLICY, web(1, { nodeName: THERE }), db(1, { nodeName: THERE }));
      assert.deepEqual([...agent.applied.snapshot('IPv4').elements], []);
      assert.deepEqual(agent.applied.snapshot('IPv4').chains, []);
    });

    it('are prepared before a rule refers to them and cleaned up when none does', () => {
      const policy = networkPolicy('p', {
        egress: [rule({ peers: [network('10.9.0.0/16'), peerPods([])], ports: [tcp(443)] })],
      });
      const agent = synced(web(1));
      agent.upsert(policy);
      const added = onlyOf(agent.sync(), 'IPv4');
      assert.deepEqual(texts(added.prepare), ['networks 10.9.0.0 10.9.255.255', 'ports 6 443 443']);
      assert.deepEqual(texts(added.add), [
        'egress-pods 10.0.0.1',
        'peers 10.0.0.1',
        'selected-pods 10.0.0.1',
      ]);
      agent.remove('NetworkPolicy', policy.key);
      const removed = onlyOf(agent.sync(), 'IPv4');
      assert.deepEqual(texts(removed.remove), ['egress-pods 10.0.0.1', 'selected-pods 10.0.0.1']);
      assert.deepEqual(texts(removed.cleanup), [
        'networks 10.9.0.0 10.9.255.255',
        'peers 10.0.0.1',
        'ports 6 443 443',
      ]);
      assert.deepEqual(
        removed.cleanupChains,
        added.chains.map(({ direction, policySetId }) => ({ direction, policySetId })),
      );
    });

    it('have ids that are never reused', () => {
      const agent = synced(POLICY, web(1), db(1));
      const before = lists(agent);
      agent.remove('NetworkPolicy', POLICY.key);
      agent.sync();
      agent.upsert(POLICY);
      agent.sync();
      assert.deepEqual(
        [...lists(agent)].filter((list) => before.has(list)),
        [],
      );
    });

    it('stay when one of two policies that use them is deleted', () => {
      const agent = synced(POLICY, networkPolicy('q', { ingress: [fromDb] }), web(1), db(1));
      agent.remove('NetworkPolicy', 'default/q');
      const change = onlyOf(agent.sync(), 'IPv4');
      assert.deepEqual([change.prepare, change.cleanup], [[], []]);
      assert.equal(appliedElements(agent, 'peers').length, 1);
    });

    it('stay when a policy gets an additional rule', () => {
      const agent = synced(POLICY, web(1), db(1));
      agent.upsert(
        networkPolicy('p', { subject: WEB_ONLY, ingress: [fromDb, rule({ ports: [tcp(1)] })] }),
      );
      const { prepare, remove, add, cleanup } = onlyOf(agent.sync(), 'IPv4');
      assert.deepEqual(texts(prepare), ['ports 6 1 1']);
      assert.deepEqual([remove, add, cleanup], [[], [], []]);
    });
  });

  describe('CIDR groups', () => {
    const policy = (selector = labelled({ env: 'a' })) =>
      adminPolicy('p', { egress: [rule({ peers: [{ kind: 'cidrGroups', selector }] })] });
    const one = group('one', { env: 'a' }, ['203.0.113.0/26', '203.0.113.128/26', '2001:db8::/32']);
    const two = group('two', { env: 'a' }, ['198.51.100.0/24']);

    /** Elements that are added and removed in IPv4 when groups change. */
    function effect(agent: ModelHarness, ...groups: CidrGroup[]) {
      for (const each of groups) agent.upsert(each);
      const { remove, add, ...rest } = onlyChange(agent);
      assert.deepEqual({ ...rest, remove: [], add: [] }, { family: 'IPv4', ...none });
      return { remove: texts(remove), add: texts(add) };
    }

    it('change only their own elements', () => {
      const agent = synced(policy(), one, two, web(1));
      const more = group('two', { env: 'a' }, ['198.51.100.0/24', '192.0.2.0/24']);
      assert.deepEqual(effect(agent, more), {
        remove: [],
        add: ['networks 192.0.2.0 192.0.2.255'],
      });
      assert.deepEqual(effect(agent, two), {
        remove: ['networks 192.0.2.0 192.0.2.255'],
        add: [],
      });
    });

    it('are added and removed when their labels change', () => {
      const agent = synced(policy(), one, two, web(1));
      assert.deepEqual(effect(agent, { ...two, labels: { env: 'b' } }), {
        remove: ['networks 198.51.100.0 198.51.100.255'],
        add: [],
      });
      assert.deepEqual(effect(agent, two).add, ['networks 198.51.100.0 198.51.100.255']);
      agent.remove('CIDRGroup', 'two');
      assert.deepEqual(texts(onlyChange(agent).remove), ['networks 198.51.100.0 198.51.100.255']);
    });

    it('keep adjacent ranges and merge overlapping ranges', () => {
      const agent = synced(policy(), one, two, web(1));
      const between = group('two', { env: 'a' }, ['198.51.100.0/24', '203.0.113.64/26']);
      assert.deepEqual(effect(agent, between), {
        remove: [],
        add: ['networks 203.0.113.64 203.0.113.127'],
      });
      const across = group('two', { env: 'a' }, ['198.51.100.0/24', '203.0.113.0/25']);
      agent.upsert(across);
      agent.sync();
      assert.deepEqual(texts(appliedElements(agent, 'networks')), [
        'networks 198.51.100.0 198.51.100.255',
        'networks 203.0.113.0 203.0.113.127',
        'networks 203.0.113.128 203.0.113.191',
      ]);
    });

    // Before Linux 6.12.48 a packet finds neither network while one transaction replaces one by the other.
    for (const [title, cidr, range] of [
      ['wider', '203.0.112.0/23', '203.0.112.0 203.0.113.255'],
      ['narrower', '203.0.113.0/27', '203.0.113.0 203.0.113.31'],
    ] as const) {
      it(`get a ${title} network beside the old one, before rules find it and the old one is removed`, () => {
        const agent = synced(policy(), one, two, web(1));
        agent.upsert({ ...one, cidrs: [cidr, '2001:db8::/32'] });
        const change = agent.sync().find(({ family }) => family === 'IPv4');
        assert.deepEqual(texts(change?.prepare ?? []), [
          'networks 198.51.100.0 198.51.100.255',
          `networks ${range}`,
        ]);
        assert.deepEqual([change?.remove, change?.add, change?.chains.length], [[], [], 1]);
        assert.deepEqual(texts(change?.cleanup ?? []), [
          'networks 198.51.100.0 198.51.100.255',
          'networks 203.0.113.0 203.0.113.63',
          'networks 203.0.113.128 203.0.113.191',
        ]);
        agent.upsert(group('two', { env: 'a' }, []));
        assert.deepEqual(texts(onlyChange(agent).remove), ['networks 198.51.100.0 198.51.100.255']);
      });
    }

    it('change nothing when no rule selects them', () => {
      const agent = synced(policy(), one, web(1));
      agent.upsert(group('three', { env: 'b' }, ['192.0.2.0/24']));
      agent.upsert(group('two', { env: 'a' }, []));
      assert.deepEqual(agent.sync(), []);
    });

    it('do not change the other IP family', () => {
      const agent = synced(policy(), one, web(1));
      agent.upsert({ ...one, cidrs: one.cidrs.slice(0, 2) });
      const [change, ...others] = agent.sync();
      assert.deepEqual([change?.family, others], ['IPv6', []]);
      assert.deepEqual(texts(change?.remove ?? []), [
        'networks 2001:db8:: 2001:db8:ffff:ffff:ffff:ffff:ffff:ffff',
      ]);
    });
  });

  describe('named ports', () => {
    const http = (port: number) => [{ name: 'http', protocol: 'TCP' as const, port }];
    const named = { ports: [{ protocol: 'TCP' as const, name: 'http' }] };

    it('of egress rules are ports of the pods that the rule selects', () => {
      const peers = [peerPods(labelled({ app: 'db' }))];
      const agent = synced(
        networkPolicy('p', { subject: WEB_ONLY, egress: [rule({ peers, ...named })] }),
        web(1, { namedPorts: http(80) }),
        db(1, { namedPorts: http(5432), nodeName: THERE }),
        db(2),
      );
      assert.deepEqual(texts(appliedElements(agent, 'named-ports')), [
        'named-ports 10.0.1.1 6 5432',
      ]);
    });

    it('of ingress rules are ports of pods on this node', () => {
      const agent = synced(
        networkPolicy('p', { ingress: [rule(named)] }),
        web(1, { namedPorts: http(80) }),
        db(1, { namedPorts: http(5432), nodeName: THERE }),
      );
      assert.deepEqual(texts(appliedElements(agent, 'named-ports')), ['named-ports 10.0.0.1 6 80']);
    });

    it('of a pod are deduplicated', () => {
      const agent = synced(
        networkPolicy('p', { ingress: [rule(named)] }),
        web(1, { namedPorts: [...http(80), ...http(80), ...http(81)] }),
      );
      assert.equal(appliedElements(agent, 'named-ports').length, 2);
    });

    it('are updated when the pod changes its ports', () => {
      const agent = synced(
        networkPolicy('p', { ingress: [rule(named)] }),
        web(1, { namedPorts: http(80) }),
      );
      agent.upsert(web(1, { namedPorts: http(81) }));
      const { remove, add } = onlyChange(agent);
      assert.deepEqual(
        [texts(remove), texts(add)],
        [['named-ports 10.0.0.1 6 80'], ['named-ports 10.0.0.1 6 81']],
      );
    });
  });

  it('updates peer addresses when a node is created, relabelled, renumbered or deleted', () => {
    const peers = [{ kind: 'nodes' as const, selector: labelled({ zone: 'a' }) }];
    const agent = synced(adminPolicy('p', { egress: [rule({ peers })] }), web(1));
    agent.upsert(node(THERE, ['192.168.0.2'], { zone: 'a' }));
    assert.deepEqual(texts(onlyChange(agent).add), ['peers 192.168.0.2']);
    agent.upsert(node(THERE, ['192.168.0.2', '192.168.0.3'], { zone: 'a' }));
    assert.deepEqual(texts(onlyChange(agent).add), ['peers 192.168.0.3']);
    agent.upsert(node('other', ['192.168.0.3'], { zone: 'a' }));
    assert.deepEqual(agent.sync(), []);
    agent.upsert(node(THERE, ['192.168.0.2', '192.168.0.3'], { zone: 'b' }));
    assert.deepEqual(texts(onlyChange(agent).remove), ['peers 192.168.0.2']);
    agent.upsert(node('other', ['192.168.0.4'], { zone: 'a' }));
    const { remove, add } = onlyChange(agent);
    assert.deepEqual([texts(remove), texts(add)], [['peers 192.168.0.3'], ['peers 192.168.0.4']]);
    agent.remove('Node', 'other');
    assert.deepEqual(texts(onlyChange(agent).remove), ['peers 192.168.0.4']);
  });

  it('gives an address of both a node and a pod the memberships of both', () => {
    const peers = [{ kind: 'nodes' as const, selector: [] }];
    const agent = synced(
      adminPolicy('a', {
        egress: [rule({ peers }), rule({ peers: [peerPods(labelled({ app: 'db' }))] })],
      }),
      web(1),
      db(1, { nodeName: THERE }),
      node(THERE, ['10.0.1.1']),
    );
    assert.deepEqual(texts(appliedElements(agent, 'peers')), ['peers 10.0.1.1', 'peers 10.0.1.1']);
    agent.remove('Node', THERE);
    assert.deepEqual(texts(onlyChange(agent).remove), ['peers 10.0.1.1']);
  });

  it('keeps the labels of a namespace without pods', () => {
    const peers = [peerPods([], labelled({ team: 'a' }))];
    const red = { namespace: 'red', nodeName: THERE };
    const agent = synced(
      networkPolicy('p', { subject: WEB_ONLY, ingress: [rule({ peers })] }),
      web(1),
      namespace('red', { team: 'a' }),
      db(1, red),
    );
    agent.remove('Pod', 'red/db-1');
    agent.sync();
    agent.upsert(db(2, red));
    assert.deepEqual(texts(onlyChange(agent).add), ['peers 10.0.1.2']);
  });

  it('changes only the affected pods when a namespace is relabelled', () => {
    const peers = [peerPods(labelled({ app: 'db' }), labelled({ team: 'a' }))];
    const agent = synced(
      networkPolicy('p', { subject: WEB_ONLY, ingress: [rule({ peers })] }),
      namespace('red', { team: 'b' }),
      web(1),
      db(1, { namespace: 'red', nodeName: THERE }),
      web(2, { namespace: 'red', nodeName: THERE }),
    );
    agent.upsert(namespace('red', { team: 'a' }));
    assert.deepEqual(texts(onlyChange(agent).add), ['peers 10.0.1.1']);
    agent.upsert(namespace('red', { team: 'a', more: 'x' }));
    assert.deepEqual(agent.sync(), []);
    agent.remove('Namespace', 'red');
    assert.deepEqual(texts(onlyChange(agent).remove), ['peers 10.0.1.1']);
  });

  it('returns changes of the enabled IP families only', () => {
    const model = new PolicyModel({ nodeName: HERE });
    const applied = new AppliedState(model, ['IPv6']);
    model.upsert(POLICY);
    model.upsert(web(1, { addresses: ['10.0.0.1', 'fd00::1'] }));
    const changes = applied.takeChanges();
    assert.deepEqual(
      changes.map(({ family }) => family),
      ['IPv6'],
    );
    assert.deepEqual(texts(changes[0]?.add ?? []), [
      'dns-bypass fd00::1',
      'hairpin-pods fd00::1',
      'ingress-pods fd00::1',
      'selected-pods fd00::1',
    ]);
  });

  it('excludes changes after takeChanges() from the snapshot', () => {
    const agent = synced(POLICY, web(1), db(1));
    const before = contentOf(agent, 'IPv4');
    agent.upsert(web(2));
    agent.remove('NetworkPolicy', POLICY.key);
    agent.applied.takeChanges();
    assert.notDeepEqual(contentOf(agent, 'IPv4'), before);
    agent.upsert(POLICY);
    agent.remove('Pod', 'default/web-2');
    const between = [...agent.applied.snapshot('IPv4').elements];
    assert.deepEqual(texts(between), [
      'dns-bypass 10.0.0.1',
      'dns-bypass 10.0.0.2',
      'dns-bypass 10.0.1.1',
      'hairpin-pods 10.0.0.1',
      'hairpin-pods 10.0.0.2',
      'hairpin-pods 10.0.1.1',
    ]);
  });

  it('adds and removes the VIPs of Services with owned ports', () => {
    const agent = synced(POLICY, web(1), db(1));
    agent.applied.setOwnedVip('10.96.0.1', true);
    agent.applied.setOwnedVip('fd00:96::1', true);
    const changes = agent.sync();
    assert.deepEqual(texts(onlyOf(changes, 'IPv4').add), ['owned-vips 10.96.0.1']);
    assert.deepEqual(texts(onlyOf(changes, 'IPv6').add), ['owned-vips fd00:96::1']);
    agent.applied.setOwnedVip('10.96.0.1', false);
    agent.applied.setOwnedVip('10.96.0.2', true);
    const change = onlyChange(agent);
    assert.deepEqual(
      [texts(change.remove), texts(change.add)],
      [['owned-vips 10.96.0.1'], ['owned-vips 10.96.0.2']],
    );
    agent.applied.setOwnedVip('10.96.0.2', false);
    agent.applied.setOwnedVip('10.96.0.2', true);
    assert.deepEqual(agent.sync(), []);
    assert.deepEqual(texts(appliedElements(agent, 'owned-vips')), ['owned-vips 10.96.0.2']);
  });

  it('tracks the lists of domain names while a rule refers to them', () => {
    const names = (...patterns: string[]) =>
      rule({ peers: patterns.map((pattern) => ({ kind: 'domainName', pattern })) });
    const agent = synced(
      adminPolicy('p', { egress: [names('example.com', '*.example.org')] }),
      adminPolicy('q', { egress: [names('example.com')] }),
    );
    assert.equal(agent.model.listsByDomainName().size, 0, 'no pod is selected');
    agent.upsert(web(1));
    agent.sync();
    const domainNames = agent.model.listsByDomainName();
    assert.deepEqual([...domainNames].map(([pattern, lists]) => [pattern, lists.size]).sort(), [
      ['*.example.org', 1],
      ['example.com', 2],
    ]);
    const named = agent.applied
      .snapshot('IPv4')
      .chains.flatMap(({ admin }) => admin.map(({ peers }) => peers));
    assert.deepEqual(
      named.map((peers) => peers?.sets),
      [['fqdn-peers'], ['fqdn-peers']],
    );
    assert.deepEqual(new Set(named.map((peers) => peers?.id)), domainNames.get('example.com'));
    agent.remove('AdminNetworkPolicy', 'p');
    agent.sync();
    assert.deepEqual([...domainNames.keys()], ['example.com']);
  });

  it('follows the pods of this node that no policy with domain names selects', () => {
    const policy = (...peers: NonNullable<PolicyRule['peers']>) =>
      adminPolicy('p', { subject: WEB_ONLY, egress: [rule({ peers })] });
    const name = { kind: 'domainName', pattern: 'example.com' } as const;
    const bypass = () => texts(appliedElements(agent, 'dns-bypass'));
    const [first, second] = ['dns-bypass 10.0.0.1', 'dns-bypass 10.0.0.2'];
    const agent = synced(policy(network('0.0.0.0/0')), web(1), web(3, { nodeName: THERE }));
    assert.deepEqual(bypass(), [first]);
    // The policy stays the same object, with other rules.
    agent.upsert(policy(network('0.0.0.0/0'), name));
    assert.deepEqual(texts(onlyOf(agent.sync(), 'IPv4').remove), [first]);
    agent.upsert(web(2));
    agent.sync();
    assert.deepEqual(bypass(), []);
    agent.upsert(web(2, { labels: { app: 'other' } }));
    agent.sync();
    assert.deepEqual(bypass(), [second]);
    agent.upsert(policy(network('0.0.0.0/0')));
    assert.deepEqual(texts(onlyOf(agent.sync(), 'IPv4').add), [first]);
    assert.deepEqual(bypass(), [first, second]);
  });
});

function onlyOf(changes: readonly PolicyChange[], family: string): PolicyChange {
  const change = changes.find((each) => each.family === family);
  assert.ok(change !== undefined);
  return change;
}
