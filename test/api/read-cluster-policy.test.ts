/** Reads AdminNetworkPolicy, BaselineAdminNetworkPolicy and ClusterNetworkPolicy. */
import assert from 'node:assert/strict';
import { InvalidObject } from '../../api/errors.ts';
import type { Policy, PolicyRule } from '../../api/policy-objects.ts';
import {
  readAdminNetworkPolicy,
  readBaselineAdminNetworkPolicy,
  readClusterNetworkPolicy,
} from '../../api/read-cluster-policy.ts';

type Raw = Readonly<Record<string, unknown>>;

const EVERYONE = { namespaces: {} };
const app = (value: string) => [{ key: 'app', operator: 'In', values: [value] }];
const selects = (value: string) => ({ matchLabels: { app: value } });
const ALL_PODS = [{ kind: 'pods', selection: { namespaces: [], pods: [] } }];

/** The three kinds, each with its required fields. */
const KINDS = {
  AdminNetworkPolicy: {
    read: readAdminNetworkPolicy,
    name: 'a',
    spec: { priority: 7 },
    allow: 'Allow',
    ports: 'ports',
    most: 100,
  },
  BaselineAdminNetworkPolicy: {
    read: readBaselineAdminNetworkPolicy,
    name: 'default',
    spec: {},
    allow: 'Allow',
    ports: 'ports',
    most: 100,
  },
  ClusterNetworkPolicy: {
    read: readClusterNetworkPolicy,
    name: 'a',
    spec: { tier: 'Admin', priority: 7 },
    allow: 'Accept',
    ports: 'protocols',
    most: 25,
  },
} as const;
type Kind = keyof typeof KINDS;

const policy = (kind: Kind, spec: Raw, name: string = KINDS[kind].name): Policy =>
  KINDS[kind].read({
    metadata: { name, uid: 'u1' },
    spec: { subject: EVERYONE, ...KINDS[kind].spec, ...spec },
  });
const withRule = (kind: Kind, direction: 'ingress' | 'egress', rule: unknown) => {
  const read = policy(kind, { [direction]: [rule] });
  return { rule: read[direction]?.[0], faults: read.faults };
};
const NOTHING = { action: 'Allow', peers: [], ports: [] };
const EVERYTHING = { action: 'Deny', peers: undefined, ports: undefined };
const effect = (rule: PolicyRule | undefined) => {
  const { action, peers, ports } = rule ?? {};
  return { action, peers, ports };
};

/** Checks that a rule with this content fails closed for this reason, whatever its action. */
function failsClosed(
  kind: Kind,
  direction: 'ingress' | 'egress',
  rule: Raw,
  field: string,
  reason: RegExp,
): void {
  const { allow } = KINDS[kind];
  const actions = [
    [allow, NOTHING],
    ['Deny', EVERYTHING],
    ...(kind === 'BaselineAdminNetworkPolicy' ? [] : [['Pass', EVERYTHING] as const]),
  ] as const;
  for (const [action, expected] of actions) {
    const { rule: read, faults } = withRule(kind, direction, { action, ...rule });
    assert.equal(faults.length, 1, JSON.stringify(faults));
    assert.equal(faults[0]?.field, `spec.${direction}[0]${field}`);
    assert.match(faults[0]?.reason ?? '', reason);
    assert.deepEqual(effect(read), expected);
    assert.equal(read?.path, `spec.${direction}[0]`);
  }
}

describe('read-cluster-policy: AdminNetworkPolicy, BaselineAdminNetworkPolicy, ClusterNetworkPolicy', () => {
  it('reads all fields of an AdminNetworkPolicy', () => {
    const read = policy('AdminNetworkPolicy', {
      priority: 1000,
      subject: { pods: { namespaceSelector: selects('a'), podSelector: selects('b') } },
      ingress: [{ name: 'in', action: 'Pass', from: [{ namespaces: selects('c') }] }],
      egress: [
        {
          action: 'Allow',
          to: [{ domainNames: ['Example.COM.'] }, { nodes: {} }],
          ports: [{ portNumber: { port: 443 } }],
        },
        { name: 'no', action: 'Deny', to: [{ networks: ['0.0.0.0/0', '::/0'] }] },
      ],
    });
    assert.deepEqual(read, {
      kind: 'AdminNetworkPolicy',
      key: 'a',
      namespace: '',
      name: 'a',
      uid: 'u1',
      tier: 'Admin',
      priority: 1000,
      subject: { namespaces: app('a'), pods: app('b') },
      ingress: [
        {
          path: 'spec.ingress[0]',
          name: 'in',
          action: 'Pass',
          peers: [{ kind: 'pods', selection: { namespaces: app('c'), pods: [] } }],
          ports: undefined,
        },
      ],
      egress: [
        {
          path: 'spec.egress[0]',
          name: '',
          action: 'Allow',
          peers: [
            { kind: 'domainName', pattern: 'example.com' },
            { kind: 'nodes', selector: [] },
          ],
          ports: [{ protocol: 'TCP', first: 443, last: 443 }],
        },
        {
          path: 'spec.egress[1]',
          name: 'no',
          action: 'Deny',
          peers: [
            { kind: 'network', cidr: '0.0.0.0/0', except: [] },
            { kind: 'network', cidr: '::/0', except: [] },
          ],
          ports: undefined,
        },
      ],
      faults: [],
    });
  });

  it('reads all fields of a BaselineAdminNetworkPolicy', () => {
    const read = policy('BaselineAdminNetworkPolicy', {
      egress: [
        { action: 'Allow', to: [{ nodes: selects('a') }] },
        { action: 'Deny', to: [{ namespaces: {} }], ports: [{ namedPort: 'http' }] },
      ],
    });
    assert.deepEqual(
      { ...read, egress: undefined },
      {
        kind: 'BaselineAdminNetworkPolicy',
        key: 'default',
        namespace: '',
        name: 'default',
        uid: 'u1',
        tier: 'Baseline',
        priority: 0,
        subject: { namespaces: [], pods: [] },
        ingress: undefined,
        egress: undefined,
        faults: [],
      },
    );
    assert.deepEqual(read.egress?.map(effect), [
      { action: 'Allow', peers: [{ kind: 'nodes', selector: app('a') }], ports: undefined },
      { action: 'Deny', peers: ALL_PODS, ports: [{ protocol: undefined, name: 'http' }] },
    ]);
  });

  it('reads all fields of a ClusterNetworkPolicy', () => {
    const read = policy('ClusterNetworkPolicy', {
      tier: 'Baseline',
      priority: 0,
      ingress: [
        {
          action: 'Accept',
          from: [{ pods: { podSelector: {} } }],
          protocols: [{ tcp: { destinationPort: { number: 80 } } }],
        },
        { action: 'Pass', from: [{ namespaces: {} }] },
      ],
    });
    assert.deepEqual(
      [read.tier, read.priority, read.egress, read.faults],
      ['Baseline', 0, undefined, []],
    );
    assert.deepEqual(read.ingress?.map(effect), [
      { action: 'Allow', peers: ALL_PODS, ports: [{ protocol: 'TCP', first: 80, last: 80 }] },
      { action: 'Pass', peers: ALL_PODS, ports: undefined },
    ]);
  });

  for (const kind of Object.keys(KINDS) as Kind[]) {
    const { allow, most, ports, name } = KINDS[kind];

    describe(`subject of ${kind}`, () => {
      const needsBoth = kind !== 'ClusterNetworkPolicy';
      it('selects namespaces, or pods in namespaces; an empty selector selects all', () => {
        const of = (subject: Raw) => policy(kind, { subject }).subject;
        assert.deepEqual(of({ namespaces: selects('a') }), { namespaces: app('a'), pods: [] });
        assert.deepEqual(of({ namespaces: {} }), { namespaces: [], pods: [] });
        assert.deepEqual(of({ pods: { namespaceSelector: {}, podSelector: {} } }), {
          namespaces: [],
          pods: [],
        });
      });

      for (const [subject, field] of [
        [undefined, 'spec.subject'],
        [null, 'spec.subject'],
        [{}, 'spec.subject'],
        ['all', 'spec.subject'],
        [{ namespaces: {}, pods: { namespaceSelector: {}, podSelector: {} } }, 'spec.subject'],
        [{ namespaceSelector: {} }, 'spec.subject.namespaceSelector'],
        [{ namespaces: { app: 'a' } }, 'spec.subject.namespaces.app'],
        [{ pods: { namespaceSelector: {} } }, 'spec.subject.pods.podSelector'],
        [{ pods: { podSelector: {}, labels: {} } }, 'spec.subject.pods.labels'],
        ...(needsBoth
          ? ([[{ pods: { podSelector: {} } }, 'spec.subject.pods.namespaceSelector']] as const)
          : []),
      ] as const) {
        it(`rejects the policy when the subject is ${JSON.stringify(subject)}`, () => {
          assert.throws(
            () => policy(kind, { subject, ingress: [{ action: 'Deny' }] }),
            (error) => error instanceof InvalidObject && error.field === field,
          );
        });
      }

      it('rejects a policy without a spec', () => {
        assert.throws(() => KINDS[kind].read({ metadata: { name } }), /spec\.subject: is required/);
        assert.throws(() => KINDS[kind].read({ metadata: { name }, spec: [] }), /spec: must be/);
      });
    });

    describe(`rules of ${kind}`, () => {
      it('leave a direction undefined when it has no rules', () => {
        for (const list of [undefined, null, []]) {
          const read = policy(kind, { ingress: list, egress: list });
          assert.deepEqual([read.ingress, read.egress, read.faults], [undefined, undefined, []]);
        }
      });

      it(`fail closed when a direction has more than ${most}`, () => {
        const rule = (action: string) => ({ action, to: [{ namespaces: {} }] });
        const rules = (count: number) =>
          Array.from({ length: count }, (_, index) => rule(index === 0 ? 'Deny' : allow));
        assert.deepEqual(policy(kind, { egress: rules(most) }).faults, []);
        const read = policy(kind, {
          egress: rules(most + 1),
          ingress: [{ action: 'Deny', from: [{ namespaces: {} }] }],
        });
        assert.deepEqual(read.faults, [
          { field: 'spec.egress', reason: `must have at most ${most} rules, not ${most + 1}` },
        ]);
        assert.deepEqual(effect(read.egress?.[0]), EVERYTHING);
        assert.ok(read.egress?.slice(1).every((each) => each.action === 'Allow'));
        assert.deepEqual(effect(read.egress?.[1]), NOTHING);
        assert.deepEqual(effect(read.ingress?.[0]), {
          action: 'Deny',
          peers: ALL_PODS,
          ports: undefined,
        });
      });

      for (const list of [{}, 'all', 7]) {
        it(`deny everything when the list is ${JSON.stringify(list)}`, () => {
          const read = policy(kind, { egress: list });
          assert.deepEqual(read.faults, [{ field: 'spec.egress', reason: 'must be a list' }]);
          assert.deepEqual(read.egress?.map(effect), [EVERYTHING]);
          assert.equal(read.ingress, undefined);
        });
      }

      for (const rule of [null, 7, [], 'Allow']) {
        it(`deny everything when a rule is ${JSON.stringify(rule)}`, () => {
          const { rule: read, faults } = withRule(kind, 'ingress', rule);
          assert.deepEqual(effect(read), EVERYTHING);
          assert.equal(faults.length, 1);
          assert.equal(faults[0]?.field, 'spec.ingress[0]');
        });
      }

      for (const action of [undefined, null, '', 'allow', 'Log', 'Reject', 7]) {
        it(`deny everything when the action is ${JSON.stringify(action)}`, () => {
          const { rule, faults } = withRule(kind, 'ingress', {
            action,
            from: [{ namespaces: {} }],
          });
          assert.deepEqual(effect(rule), EVERYTHING);
          assert.equal(faults.length, 1);
          assert.equal(faults[0]?.field, 'spec.ingress[0].action');
        });
      }

      it('accept any name of up to 100 characters', () => {
        const named = (text: unknown) =>
          withRule(kind, 'ingress', { name: text, action: 'Deny', from: [{ namespaces: {} }] });
        for (const text of ['', 'Grüße an "alle"', '\u{1f980}'.repeat(100)]) {
          assert.deepEqual([named(text).rule?.name, named(text).faults], [text, []]);
        }
      });
      for (const name of ['x'.repeat(101), 7]) {
        it(`fail closed when the name is ${JSON.stringify(name).slice(0, 20)}`, () => {
          const rule = { name, from: [{ namespaces: {} }] };
          failsClosed(kind, 'ingress', rule, '.name', /at most 100 characters, not 101|string/);
        });
      }

      for (const unknown of [
        'to',
        'port',
        kind === 'ClusterNetworkPolicy' ? 'ports' : 'protocols',
      ]) {
        it(`fail closed when an ingress rule has the unknown field ${unknown}`, () => {
          const rule = { from: [{ namespaces: {} }], [unknown]: [] };
          failsClosed(kind, 'ingress', rule, `.${unknown}`, /unknown field/);
        });
      }

      for (const [peers, field, reason] of [
        [undefined, '', /required/],
        [null, '', /required/],
        [[], '', /not be empty/],
        [{}, '', /list/],
        [Array.from({ length: most + 1 }, () => ({ namespaces: {} })), '', /at most/],
        [[{}], '[0]', /must have one of the fields namespaces, pods/],
        [[null], '[0]', /must have one of the fields namespaces, pods/],
        [[{ namespaces: {} }, {}], '[1]', /must have one of/],
        [[{ namespaces: null }], '[0]', /must have one of/],
        [[7], '[0]', /object/],
        [[{ services: {} }], '[0].services', /unknown field/],
        [[{ namespaces: {}, services: {} }], '[0].services', /unknown field/],
        [[{ namespaces: {}, pods: { podSelector: {} } }], '[0]', /namespaces or pods, not both/],
        [[{ namespaces: { notSameLabels: [] } }], '[0].namespaces.notSameLabels', /unknown field/],
        [[{ pods: {} }], /^\[0\]\.pods\.(namespace|pod)Selector$/, /required/],
      ] as const) {
        it(`fail closed when the peers are ${JSON.stringify(peers)?.slice(0, 80)}`, () => {
          for (const [direction, member] of [
            ['ingress', 'from'],
            ['egress', 'to'],
          ] as const) {
            if (typeof field === 'string') {
              failsClosed(kind, direction, { [member]: peers }, `.${member}${field}`, reason);
              continue;
            }
            const { faults } = withRule(kind, direction, { action: allow, [member]: peers });
            assert.match(faults[0]?.reason ?? '', reason);
          }
        });
      }

      it('accept peers up to the limit', () => {
        const from = Array.from({ length: most }, () => ({ namespaces: {} }));
        const { rule, faults } = withRule(kind, 'ingress', { action: 'Deny', from });
        assert.deepEqual([rule?.peers?.length, faults], [most, []]);
      });

      for (const form of ['nodes', 'networks', 'domainNames']) {
        it(`fail closed when ${form} are ingress peers`, () => {
          failsClosed(
            kind,
            'ingress',
            { from: [{ [form]: {} }] },
            `.from[0].${form}`,
            /unknown field/,
          );
        });
      }

      it(`accept 1 to ${most} ${ports}, and match all ports when they are missing`, () => {
        const rule = (list: unknown) => ({ to: [{ namespaces: {} }], [ports]: list });
        for (const list of [undefined, null]) {
          assert.deepEqual(
            effect(withRule(kind, 'egress', { action: 'Deny', ...rule(list) }).rule),
            { action: 'Deny', peers: ALL_PODS, ports: undefined },
          );
        }
        const one = ports === 'ports' ? { namedPort: 'a' } : { destinationNamedPort: 'a' };
        const many = (count: number) => rule(Array.from({ length: count }, () => one));
        const { rule: full } = withRule(kind, 'egress', { action: 'Deny', ...many(most) });
        assert.equal(full?.ports?.length, most);
        failsClosed(kind, 'egress', many(most + 1), `.${ports}`, /at most/);
        failsClosed(kind, 'egress', rule([]), `.${ports}`, /not be empty/);
        failsClosed(kind, 'egress', rule({}), `.${ports}`, /list/);
      });
    });

    describe(`networks of ${kind}`, () => {
      const peers = (networks: unknown) => {
        const { rule, faults } = withRule(kind, 'egress', { action: 'Deny', to: [{ networks }] });
        assert.deepEqual(faults, []);
        return rule?.peers;
      };
      const network = (cidr: string) => ({ kind: 'network', cidr, except: [] });
      const groups = (value: string) => ({ kind: 'cidrGroups', selector: app(value) });
      const many = (count: number) =>
        Array.from({ length: count }, (_, index) => `10.0.${index}.0/24`);

      for (const [what, networks, expected] of [
        [
          'a list of CIDRs',
          ['10.0.0.0/8', 'FD00::/8'],
          [network('10.0.0.0/8'), network('fd00::/8')],
        ],
        ['CIDRs with host bits', ['10.1.2.3/8'], [network('10.0.0.0/8')]],
        [
          'a list of structs',
          [{ cidrs: ['10.0.0.0/8'] }, { cidrGroups: selects('a') }],
          [network('10.0.0.0/8'), groups('a')],
        ],
        ['one struct of CIDRs', { cidrs: ['0.0.0.0/0'] }, [network('0.0.0.0/0')]],
        ['one struct of groups', { cidrGroups: selects('a') }, [groups('a')]],
        ['all groups there are', { cidrGroups: {} }, [{ kind: 'cidrGroups', selector: [] }]],
        [
          'CIDRs and structs in one list',
          ['10.0.0.0/8', { cidrGroups: selects('a') }],
          [network('10.0.0.0/8'), groups('a')],
        ],
      ] as const) {
        it(`accept ${what}`, () => assert.deepEqual(peers(networks), expected));
      }

      it('accept at most 25 CIDRs, or 100 structs with 25 CIDRs each', () => {
        assert.equal(peers(many(25))?.length, 25);
        assert.equal(peers({ cidrs: many(25) })?.length, 25);
        assert.equal(peers(Array.from({ length: 100 }, () => ({ cidrs: many(25) })))?.length, 2500);
      });

      for (const [networks, field, reason] of [
        [[], '', /not be empty/],
        [7, '', /list/],
        ['10.0.0.0/8', '', /list/],
        [many(26), '', /at most 25 CIDRs, not 26/],
        [Array.from({ length: 101 }, () => ({ cidrGroups: {} })), '', /at most 100/],
        [{}, '', /one of the fields cidrs, cidrGroups/],
        [[{}], '[0]', /one of the fields cidrs, cidrGroups/],
        [{ cidrs: ['10.0.0.0/8'], cidrGroups: {} }, '', /cidrs or cidrGroups, not both/],
        [{ cidr: '10.0.0.0/8' }, '.cidr', /unknown field/],
        [{ cidrs: [] }, '.cidrs', /not be empty/],
        [{ cidrs: many(26) }, '.cidrs', /at most 25/],
        [{ cidrs: '10.0.0.0/8' }, '.cidrs', /list/],
        [{ cidrs: [{ cidrs: [] }] }, '.cidrs[0]', /string/],
        [{ cidrGroups: { env: 'a' } }, '.cidrGroups.env', /unknown field/],
        [['10.0.0.1'], '[0]', /CIDR/],
        [['10.0.0.0/8', 'any'], '[1]', /CIDR/],
        [['::ffff:10.0.0.0/104'], '[0]', /CIDR/],
        [['010.0.0.0/8'], '[0]', /CIDR/],
        [['fe80::%eth0/10'], '[0]', /CIDR/],
        [[null], '[0]', /required/],
        [[7], '[0]', /string/],
      ] as const) {
        it(`fail closed when they are ${JSON.stringify(networks).slice(0, 80)}`, () => {
          failsClosed(kind, 'egress', { to: [{ networks }] }, `.to[0].networks${field}`, reason);
        });
      }
    });

    describe(`named ports of ${kind}`, () => {
      const named = [ports === 'ports' ? { namedPort: 'http' } : { destinationNamedPort: 'http' }];
      it('match any protocol', () => {
        const { rule, faults } = withRule(kind, 'egress', {
          action: allow,
          to: [{ namespaces: {} }],
          [ports]: named,
        });
        assert.deepEqual([rule?.ports, faults], [[{ protocol: undefined, name: 'http' }], []]);
      });

      for (const peer of [
        { networks: ['10.0.0.0/8'] },
        { networks: { cidrGroups: {} } },
        { nodes: {} },
      ]) {
        it(`fail closed with the peer ${JSON.stringify(peer)}, which has no named ports`, () => {
          const rule = { to: [{ namespaces: {} }, peer], [ports]: named };
          failsClosed(kind, 'egress', rule, `.${ports}`, /not have a named port/);
        });
      }
    });
  }

  describe('tier and priority', () => {
    const rules = (allow: string) => ({
      egress: [
        { action: 'Deny', to: [{ networks: ['10.0.0.0/8'] }] },
        { action: allow, to: [{ namespaces: {} }] },
      ],
    });
    for (const priority of [0, 1000]) {
      it(`reads priority ${priority}`, () => {
        for (const kind of ['AdminNetworkPolicy', 'ClusterNetworkPolicy'] as const) {
          const read = policy(kind, { priority });
          assert.deepEqual([read.priority, read.faults], [priority, []]);
        }
      });
    }
    for (const [kind, spec, field, reason] of [
      ['AdminNetworkPolicy', { priority: 1001 }, 'priority', /0 to 1000, not 1001/],
      ['AdminNetworkPolicy', { priority: -1 }, 'priority', /0 to 1000/],
      ['AdminNetworkPolicy', { priority: undefined }, 'priority', /required/],
      ['AdminNetworkPolicy', { tier: 'Admin' }, 'tier', /unknown field/],
      ['BaselineAdminNetworkPolicy', { priority: 1 }, 'priority', /unknown field/],
      ['ClusterNetworkPolicy', { priority: 1001 }, 'priority', /0 to 1000/],
      ['ClusterNetworkPolicy', { priority: '1' }, 'priority', /0 to 1000/],
      ['ClusterNetworkPolicy', { tier: undefined }, 'tier', /required/],
      ['ClusterNetworkPolicy', { tier: 'admin' }, 'tier', /one of Admin, Baseline, not "admin"/],
      ['ClusterNetworkPolicy', { tier: 'NetworkPolicy' }, 'tier', /one of Admin, Baseline/],
    ] as const) {
      it(`fails all rules closed when a ${kind} has ${JSON.stringify(spec)}`, () => {
        const read = policy(kind, { ...rules(KINDS[kind].allow), ...spec });
        assert.equal(read.faults.length, 1);
        assert.equal(read.faults[0]?.field, `spec.${field}`);
        assert.match(read.faults[0]?.reason ?? '', reason);
        assert.deepEqual(read.egress?.map(effect), [EVERYTHING, NOTHING]);
        if (field === 'priority') assert.equal(read.priority, 0);
        if (kind === 'ClusterNetworkPolicy') assert.equal(read.tier, 'Admin');
      });
    }

    it('fails closed when a BaselineAdminNetworkPolicy is not named default', () => {
      const read = policy('BaselineAdminNetworkPolicy', rules('Allow'), 'other');
      assert.equal(read.faults[0]?.field, 'metadata.name');
      assert.deepEqual(read.egress?.map(effect), [EVERYTHING, NOTHING]);
    });

    it('rejects the action Pass in a BaselineAdminNetworkPolicy', () => {
      const rule = { action: 'Pass', from: [{ namespaces: {} }] };
      const { rule: read, faults } = withRule('BaselineAdminNetworkPolicy', 'ingress', rule);
      assert.match(faults[0]?.reason ?? '', /one of Allow, Deny, not "Pass"/);
      assert.deepEqual(effect(read), EVERYTHING);
    });

    for (const [kind, action] of [
      ['AdminNetworkPolicy', 'Accept'],
      ['BaselineAdminNetworkPolicy', 'Accept'],
      ['ClusterNetworkPolicy', 'Allow'],
    ] as const) {
      it(`rejects the action ${action} in ${kind}`, () => {
        const { rule, faults } = withRule(kind, 'ingress', { action, from: [{ namespaces: {} }] });
        assert.equal(faults[0]?.field, 'spec.ingress[0].action');
        assert.deepEqual(effect(rule), EVERYTHING);
      });
    }
  });

  for (const kind of ['AdminNetworkPolicy', 'BaselineAdminNetworkPolicy'] as const) {
    describe(`ports of ${kind}`, () => {
      const rule = (port: unknown) => ({ from: [{ namespaces: {} }], ports: [port] });
      for (const [port, expected] of [
        [{ portNumber: { protocol: 'UDP', port: 53 } }, { protocol: 'UDP', first: 53, last: 53 }],
        [{ portNumber: { port: 80 } }, { protocol: 'TCP', first: 80, last: 80 }],
        [
          { portRange: { protocol: 'SCTP', start: 1, end: 65535 } },
          { protocol: 'SCTP', first: 1, last: 65535 },
        ],
        [{ portRange: { start: 80, end: 81 } }, { protocol: 'TCP', first: 80, last: 81 }],
        [{ portRange: { start: 80, end: 80 } }, { protocol: 'TCP', first: 80, last: 80 }],
        [{ namedPort: 'No pod has this' }, { protocol: undefined, name: 'No pod has this' }],
      ] as const) {
        it(`reads ${JSON.stringify(port)}`, () => {
          const read = withRule(kind, 'ingress', { action: 'Deny', ...rule(port) });
          assert.deepEqual([read.rule?.ports, read.faults], [[expected], []]);
        });
      }
      for (const [port, field, reason] of [
        [{}, '', /one of the fields portNumber, portRange, namedPort/],
        [null, '', /one of the fields portNumber, portRange, namedPort/],
        [80, '', /object/],
        [{ portNumber: { port: 80 }, namedPort: 'a' }, '', /portNumber or namedPort, not both/],
        [{ number: 80 }, '.number', /unknown field/],
        [{ portNumber: 80 }, '.portNumber', /object/],
        [{ portNumber: {} }, '.portNumber.port', /required/],
        [{ portNumber: { port: 0 } }, '.portNumber.port', /1 to 65535/],
        [{ portNumber: { port: 65536 } }, '.portNumber.port', /1 to 65535/],
        [{ portNumber: { port: 80, protocol: 'ICMP' } }, '.portNumber.protocol', /TCP, UDP, SCTP/],
        [{ portNumber: { port: 80, endPort: 81 } }, '.portNumber.endPort', /unknown field/],
        [{ portRange: {} }, '.portRange.start', /required/],
        [{ portRange: { start: 80 } }, '.portRange.end', /required/],
        [
          { portRange: { start: 81, end: 80 } },
          '.portRange.end',
          /not be less than start \(81\), but is 80/,
        ],
        [{ portRange: { start: 0, end: 80 } }, '.portRange.start', /1 to 65535/],
        [{ portRange: { start: 1, end: 2, port: 3 } }, '.portRange.port', /unknown field/],
        [{ namedPort: '' }, '.namedPort', /not be empty/],
        [{ namedPort: 80 }, '.namedPort', /string/],
      ] as const) {
        it(`rejects ${JSON.stringify(port)}`, () => {
          failsClosed(kind, 'ingress', rule(port), `.ports[0]${field}`, reason);
        });
      }
    });
  }

  describe('protocols of ClusterNetworkPolicy', () => {
    const rule = (port: unknown) => ({ from: [{ namespaces: {} }], protocols: [port] });
    for (const [port, expected] of [
      [{ tcp: { destinationPort: { number: 80 } } }, { protocol: 'TCP', first: 80, last: 80 }],
      [{ udp: { destinationPort: { number: 53 } } }, { protocol: 'UDP', first: 53, last: 53 }],
      [
        { sctp: { destinationPort: { range: { start: 1, end: 65535 } } } },
        { protocol: 'SCTP', first: 1, last: 65535 },
      ],
      [
        { tcp: { destinationPort: { range: { start: 2, end: 2 } } } },
        { protocol: 'TCP', first: 2, last: 2 },
      ],
      [{ destinationNamedPort: 'http' }, { protocol: undefined, name: 'http' }],
    ] as const) {
      it(`reads ${JSON.stringify(port)}`, () => {
        const read = withRule('ClusterNetworkPolicy', 'ingress', { action: 'Deny', ...rule(port) });
        assert.deepEqual([read.rule?.ports, read.faults], [[expected], []]);
      });
    }
    const tcp = (destinationPort: unknown) => ({ tcp: { destinationPort } });
    for (const [port, field, reason] of [
      [{}, '', /one of the fields tcp, udp, sctp, destinationNamedPort/],
      [{ tcp: {}, udp: {} }, '', /tcp or udp, not both/],
      [{ icmp: {} }, '.icmp', /unknown field/],
      [{ tcp: {} }, '.tcp', /one of the fields destinationPort/],
      [{ udp: null }, '', /one of the fields tcp/],
      [{ tcp: { sourcePort: { number: 80 } } }, '.tcp.sourcePort', /unknown field/],
      [tcp({}), '.tcp.destinationPort', /one of the fields number, range/],
      [tcp(80), '.tcp.destinationPort', /object/],
      [tcp({ number: 80, range: {} }), '.tcp.destinationPort', /number or range, not both/],
      [tcp({ number: 0 }), '.tcp.destinationPort.number', /1 to 65535/],
      [tcp({ number: '80' }), '.tcp.destinationPort.number', /1 to 65535/],
      [tcp({ range: {} }), '.tcp.destinationPort.range.start', /required/],
      [tcp({ range: { start: 1 } }), '.tcp.destinationPort.range.end', /required/],
      [
        tcp({ range: { start: 3, end: 2 } }),
        '.tcp.destinationPort.range.end',
        /less than start \(3\)/,
      ],
      [tcp({ range: { start: 2, end: 3, step: 1 } }), '.tcp.destinationPort.range.step', /known/],
      [{ destinationNamedPort: '' }, '.destinationNamedPort', /not be empty/],
    ] as const) {
      it(`rejects ${JSON.stringify(port)}`, () => {
        failsClosed('ClusterNetworkPolicy', 'ingress', rule(port), `.protocols[0]${field}`, reason);
      });
    }
  });

  it('accepts a ClusterNetworkPolicy without a namespaceSelector', () => {
    const to = [{ pods: { podSelector: selects('a') } }];
    const { rule, faults } = withRule('ClusterNetworkPolicy', 'egress', { action: 'Deny', to });
    assert.deepEqual(faults, []);
    assert.deepEqual(rule?.peers, [
      { kind: 'pods', selection: { namespaces: [], pods: app('a') } },
    ]);
  });

  describe('domainNames', () => {
    const patterns = (kind: Kind, domainNames: unknown) => {
      const rule = { action: KINDS[kind].allow, to: [{ domainNames }] };
      const { rule: read, faults } = withRule(kind, 'egress', rule);
      assert.deepEqual(faults, []);
      return read?.peers?.map((peer) => peer.kind === 'domainName' && peer.pattern);
    };
    const NAMES = [
      ['kubernetes.io', 'kubernetes.io'],
      ['blog.kubernetes.io', 'blog.kubernetes.io'],
      ['*.kubernetes.io', '*.kubernetes.io'],
      ['*.Kubernetes.IO.', '*.kubernetes.io'],
      ['a--b.c_d.io', 'a--b.c_d.io'],
      ['_acme-challenge.example.com', '_acme-challenge.example.com'],
      ['1.2.3.4', '1.2.3.4'],
      [`${'x'.repeat(63)}.io`, `${'x'.repeat(63)}.io`],
    ] as const;
    for (const kind of ['AdminNetworkPolicy', 'ClusterNetworkPolicy'] as const) {
      it(`${kind}: reads names in lower case, without the trailing dot`, () => {
        assert.deepEqual(
          patterns(
            kind,
            NAMES.map(([given]) => given),
          ),
          NAMES.map(([, expected]) => expected),
        );
      });

      for (const name of [
        ...['localhost', 'io.', '*.io', '*', '*.', '.', '', '.io', 'a..io', 'a.io..'],
        ...['a.*.io', 'a*.io', '**.a.io', '*.*.io', '-a.io', 'a-.io', 'a_.io', 'a.-io'],
        ...['a b.io', 'a.io ', 'a.io\n', 'grüße.io', '[a.io', 'a/b.io', 'a.io/24', 'http://a.io'],
        ...[`${'x'.repeat(64)}.io`, `${'x.'.repeat(126)}xx`, 'x.'.repeat(100_000), 7, null],
      ]) {
        it(`${kind}: rejects ${JSON.stringify(name).slice(0, 30)}`, () => {
          const rule = { action: KINDS[kind].allow, to: [{ domainNames: ['a.io', name] }] };
          const { rule: read, faults } = withRule(kind, 'egress', rule);
          assert.deepEqual(effect(read), NOTHING);
          assert.equal(faults[0]?.field, 'spec.egress[0].to[0].domainNames[1]');
        });
      }

      it(`${kind}: accepts 1 to 25 names`, () => {
        const many = Array.from({ length: 26 }, (_, index) => `a${index}.io`);
        assert.equal(patterns(kind, many.slice(1))?.length, 25);
        const at = '.to[0].domainNames';
        failsClosed(kind, 'egress', { to: [{ domainNames: many }] }, at, /at most 25/);
        failsClosed(kind, 'egress', { to: [{ domainNames: [] }] }, at, /not be empty/);
        failsClosed(kind, 'egress', { to: [{ domainNames: 'a.io' }] }, at, /list/);
      });

      it(`${kind}: rejects equal names, but accepts two spellings of one name`, () => {
        const twice = { to: [{ domainNames: ['a.io', 'b.io', 'a.io'] }] };
        failsClosed(kind, 'egress', twice, '.to[0].domainNames[2]', /must not be repeated/);
        assert.deepEqual(patterns(kind, ['a.io', 'A.io', 'a.io.']), ['a.io', 'a.io', 'a.io']);
      });

      for (const action of ['Deny', 'Pass']) {
        it(`${kind}: fails closed in a ${action} rule`, () => {
          const rule = { action, to: [{ namespaces: {} }, { domainNames: ['a.io'] }] };
          const { rule: read, faults } = withRule(kind, 'egress', rule);
          assert.deepEqual(effect(read), EVERYTHING);
          assert.equal(faults[0]?.field, 'spec.egress[0].to');
          assert.match(faults[0]?.reason ?? '', /only an Allow rule/);
        });
      }

      it(`${kind}: reports only the action when the action is unknown`, () => {
        const rule = { action: 'Log', to: [{ domainNames: ['a.io'] }] };
        const { rule: read, faults } = withRule(kind, 'egress', rule);
        assert.deepEqual(effect(read), EVERYTHING);
        assert.deepEqual(
          faults.map(({ field }) => field),
          ['spec.egress[0].action'],
        );
      });

      it(`${kind}: fails closed when the rule has named ports`, () => {
        const { ports, allow } = KINDS[kind];
        const named = ports === 'ports' ? { namedPort: 'http' } : { destinationNamedPort: 'http' };
        const rule = { action: allow, to: [{ domainNames: ['a.io'] }], [ports]: [named] };
        const { rule: read, faults } = withRule(kind, 'egress', rule);
        assert.deepEqual(effect(read), NOTHING);
        assert.match(faults[0]?.reason ?? '', /not have a named port/);
      });
    }

    it('fails closed in a BaselineAdminNetworkPolicy', () => {
      const rule = { to: [{ domainNames: ['a.io'] }] };
      failsClosed(
        'BaselineAdminNetworkPolicy',
        'egress',
        rule,
        '.to[0].domainNames',
        /unknown field/,
      );
    });
  });
});
