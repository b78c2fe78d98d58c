import assert from 'node:assert/strict';
import { AppliedState } from '../../../policy/compile/applied-state.ts';
import {
  type ConnectionEnd,
  type ConnectionQuery,
  type Explanation,
  explain,
  explainFromOutside,
} from '../../../policy/model/explain.ts';
import { PolicyModel } from '../../../policy/model/model.ts';
import {
  adminPolicy,
  baselinePolicy,
  clusterPolicy,
  group,
  HERE,
  labelled,
  network,
  networkPolicy,
  node,
  peerPods,
  pod,
  rule,
  type TestObject,
  THERE,
  tcp,
} from '../objects.ts';

const WEB = pod('web', { addresses: ['10.0.0.1', 'fd00::1'] });
const DB = pod('db', {
  addresses: ['10.0.0.2'],
  nodeName: THERE,
  namedPorts: [{ name: 'sql', protocol: 'TCP', port: 5432 }],
});
const NODES = [node(HERE, ['192.168.0.1']), node(THERE, ['192.168.0.2'])];
const ONLY_WEB = { namespaces: 'default', pods: labelled({ app: 'web' }) };

function modelOf(objects: readonly TestObject[]): PolicyModel {
  const model = new PolicyModel({ nodeName: HERE });
  for (const object of [WEB, DB, ...NODES, ...objects]) model.upsert(object);
  return model;
}

function ask(
  objects: readonly TestObject[],
  from: ConnectionQuery['from'],
  to: ConnectionEnd,
  fields: Partial<ConnectionQuery> = {},
): Explanation[] {
  return explain(modelOf(objects), { from, to, port: 80, protocol: 'TCP', ...fields });
}

const web = { pod: 'default/web' };
const db = { pod: 'default/db' };

/** Explains the connection in the only IP family that both ends have. */
function askOne(...question: Parameters<typeof ask>): Explanation {
  const [one, ...others] = ask(...question);
  assert.ok(one !== undefined && others.length === 0);
  return one;
}

describe('explain: verdict and reason for a connection', () => {
  it('reports that no policy decides', () => {
    const { verdict, egress, ingress, family, from, to } = askOne([], web, db);
    assert.deepEqual([verdict, family, from, to], ['allow', 'IPv4', '10.0.0.1', '10.0.0.2']);
    for (const judgement of [egress, ingress]) {
      assert.deepEqual(
        [judgement.verdict, judgement.tier, judgement.policies, judgement.rule],
        ['allow', undefined, [], undefined],
      );
      assert.equal(judgement.reason, 'no rule matches, and no NetworkPolicy isolates the pod');
    }
  });

  it('reports tier, policy and rule of each direction', () => {
    const { verdict, egress, ingress } = askOne(
      [
        adminPolicy('guard', {
          egress: [
            rule({ action: 'Deny', ports: [tcp(22)] }),
            rule({ name: 'to all', peers: [peerPods([])] }),
          ],
        }),
        networkPolicy('only-sql', { ingress: [rule({ ports: [tcp(5432)] })] }),
        networkPolicy('nothing', { ingress: [] }),
      ],
      web,
      db,
    );
    assert.equal(verdict, 'deny');
    assert.deepEqual(egress, {
      direction: 'egress',
      verdict: 'allow',
      tier: 'Admin',
      policies: ['AdminNetworkPolicy guard'],
      rule: 'spec.egress[1]',
      reason: 'AdminNetworkPolicy guard spec.egress[1] (to all) allows it',
      uncertain: [],
      notLearned: [],
    });
    assert.deepEqual(ingress, {
      direction: 'ingress',
      verdict: 'deny',
      tier: 'NetworkPolicy',
      policies: ['NetworkPolicy default/nothing', 'NetworkPolicy default/only-sql'],
      rule: undefined,
      reason:
        'the pod is isolated by NetworkPolicy default/nothing, NetworkPolicy default/only-sql, ' +
        'and none of their rules allows it',
      uncertain: [],
      notLearned: [],
    });
  });

  it('reports an Admin rule with action Pass', () => {
    const { egress } = askOne(
      [
        adminPolicy('a', { egress: [rule({ action: 'Pass' })] }),
        baselinePolicy({ egress: [rule({ action: 'Deny' })] }),
      ],
      web,
      db,
    );
    assert.deepEqual(
      [egress.verdict, egress.tier, egress.rule],
      ['deny', 'Baseline', 'spec.egress[0]'],
    );
    assert.equal(
      egress.reason,
      'AdminNetworkPolicy a spec.egress[0] passes it to the next tier; ' +
        'BaselineAdminNetworkPolicy default spec.egress[0] denies it',
    );
  });

  it('reports a Baseline rule with action Pass', () => {
    const { egress } = askOne(
      [clusterPolicy('c', 'Baseline', { egress: [rule({ action: 'Pass' })] })],
      web,
      db,
    );
    assert.deepEqual([egress.verdict, egress.tier], ['allow', 'Baseline']);
    assert.equal(
      egress.reason,
      'ClusterNetworkPolicy c spec.egress[0] passes it, and the default after the last tier allows it',
    );
  });

  it('evaluates pods on other nodes with the policies that apply there', () => {
    const objects = [
      networkPolicy('p', {
        subject: { namespaces: 'default', pods: labelled({ app: 'db' }) },
        ingress: [
          rule({
            peers: [peerPods(labelled({ app: 'web' })), network('192.0.2.0/24')],
            ports: [{ protocol: 'TCP', name: 'sql' }],
          }),
        ],
      }),
    ];
    const model = modelOf(objects);
    const applied = new AppliedState(model);
    applied.takeChanges();
    const to = (from: ConnectionQuery['from'], port: number) =>
      explain(model, { from, to: db, port, protocol: 'TCP' }).map(({ verdict }) => verdict);
    assert.deepEqual(to(web, 5432), ['allow']);
    assert.deepEqual(to(web, 80), ['deny']);
    assert.deepEqual(to({ address: '192.0.2.7' }, 5432), ['allow']);
    assert.deepEqual(to({ address: '198.51.100.7' }, 5432), ['deny']);
    assert.deepEqual(applied.takeChanges(), [], 'and leaves no trace');
  });

  it('accepts addresses in place of pods', () => {
    const objects = [networkPolicy('p', { subject: ONLY_WEB, ingress: [] })];
    const from = { address: '10.0.0.2' };
    assert.equal(askOne(objects, from, { address: '10.0.0.1' }).verdict, 'deny');
    const outside = askOne(objects, { address: '203.0.113.1' }, { address: '203.0.113.2' });
    assert.equal(outside.verdict, 'allow');
    assert.equal(outside.egress.reason, 'no Pod has address 203.0.113.1, so no policy applies');
    assert.equal(outside.ingress.reason, 'no Pod has address 203.0.113.2, so no policy applies');
  });

  it('allows a node to its own pods, and a pod to itself', () => {
    const objects = [networkPolicy('p', { ingress: [], egress: [] })];
    const probe = askOne(objects, { address: '192.168.0.1' }, { address: '10.0.0.1' });
    assert.equal(probe.ingress.reason, 'a node may always connect to its own pods');
    assert.equal(
      askOne(objects, { address: '192.168.0.2' }, { address: '10.0.0.1' }).verdict,
      'deny',
    );
    assert.equal(askOne(objects, { address: '192.168.0.2' }, db).verdict, 'allow');
    const itself = ask(objects, web, web);
    assert.deepEqual(
      itself.map(({ family, verdict }) => [family, verdict]),
      [
        ['IPv4', 'allow'],
        ['IPv6', 'allow'],
      ],
    );
    assert.equal(itself[0]?.egress.reason, 'a pod may always connect to itself');
    assert.equal(itself[0]?.ingress.reason, 'a pod may always connect to itself');
  });

  it('treats a hostNetwork pod as its node', () => {
    const objects = [
      networkPolicy('p', { ingress: [], egress: [] }),
      pod('host', { addresses: ['192.168.0.1'], hostNetwork: true }),
    ];
    assert.equal(askOne(objects, { pod: 'default/host' }, web).verdict, 'allow');
    assert.equal(askOne(objects, { pod: 'default/host' }, db).verdict, 'deny');
  });

  it('explains each IP family that both ends have', () => {
    const objects = [
      networkPolicy('p', { subject: ONLY_WEB, egress: [rule({ peers: [network('::/0')] })] }),
      pod('dual', { addresses: ['10.0.0.9', 'fd00::9'] }),
    ];
    assert.deepEqual(
      ask(objects, web, { pod: 'default/dual' }).map(({ family, verdict }) => [family, verdict]),
      [
        ['IPv4', 'deny'],
        ['IPv6', 'allow'],
      ],
    );
    assert.deepEqual(ask(objects, { address: 'fd00::7' }, { address: '10.0.0.1' }), []);
  });

  it('an unknown address outside the cluster: denied, allowed, or by rules with networks', () => {
    const outside = (...objects: readonly TestObject[]) => {
      const connection = { to: '10.0.0.1', port: 80, protocol: 'TCP' } as const;
      const { verdict, ingress } = explainFromOutside(modelOf(objects), connection);
      return [verdict, ingress.uncertain.length];
    };
    const from = (...cidrs: readonly string[]) =>
      networkPolicy('some', { ingress: [rule({ peers: cidrs.map((cidr) => network(cidr)) })] });
    assert.deepEqual(outside(), ['allow', 0]);
    assert.deepEqual(outside(networkPolicy('none', { ingress: [] })), ['deny', 0]);
    const pods = networkPolicy('pods', { ingress: [rule({ peers: [peerPods([])] })] });
    assert.deepEqual(outside(pods), ['deny', 0], 'a client outside is no pod');
    assert.deepEqual(outside(from('0.0.0.0/0')), ['allow', 0]);
    assert.deepEqual(outside(from('198.51.100.0/24')), ['deny', 1]);
  });

  describe('domain names', () => {
    const objects = [
      adminPolicy('a', {
        egress: [
          rule({
            peers: [
              { kind: 'domainName', pattern: '*.example.com' },
              { kind: 'domainName', pattern: 'example.org' },
            ],
            ports: [tcp(443)],
          }),
          rule({ action: 'Pass', peers: [network('198.51.100.0/24')] }),
          rule({ action: 'Deny', peers: [network('0.0.0.0/0'), network('2000::/3')] }),
        ],
      }),
    ];
    const verdicts = (name: string, port = 443) =>
      ask(objects, web, { name }, { port }).map(({ verdict }) => verdict);

    for (const name of ['www.example.com', 'a.b.example.com', 'WWW.Example.COM.', 'example.org.']) {
      it(`${name} is allowed`, () => assert.deepEqual(verdicts(name), ['allow', 'allow']));
    }

    for (const name of ['example.com', 'myexample.com', '.example.com', 'www.example.org']) {
      it(`${name} is denied`, () => assert.equal(verdicts(name)[0], 'deny'));
    }

    it('match only with the ports of their rule', () => {
      assert.equal(verdicts('www.example.com', 80)[0], 'deny');
    });

    it('reports rules that depend on the unknown address of a name', () => {
      const [ipv4, ipv6] = ask(objects, web, { name: 'other.net' });
      assert.deepEqual(
        [ipv4?.verdict, ipv4?.egress.uncertain],
        ['deny', ['AdminNetworkPolicy a spec.egress[1]']],
      );
      assert.deepEqual(
        [ipv6?.verdict, ipv6?.egress.uncertain],
        ['allow', ['AdminNetworkPolicy a spec.egress[2]']],
      );
      assert.deepEqual(
        [ipv4?.to, ipv4?.ingress.reason],
        [
          undefined,
          'the address of the domain name is unknown, so no policy of a destination pod is evaluated',
        ],
      );
    });

    it('are evaluated with the address if it is given', () => {
      const at = (address: string, name = 'other.net') =>
        askOne(objects, web, { name, address }, { port: 443 });
      assert.equal(at('198.51.100.9').verdict, 'allow');
      assert.equal(at('203.0.113.9').verdict, 'deny');
      assert.equal(at('203.0.113.9', 'www.example.com').egress.rule, 'spec.egress[0]');
      assert.equal(
        at('10.0.0.2', 'www.example.com').ingress.reason,
        'no rule matches, and no NetworkPolicy isolates the pod',
      );
    });

    it('match the addresses in the FQDN cache', () => {
      const to = { address: '203.0.113.9' };
      const port = 443;
      assert.equal(askOne(objects, web, to, { port }).verdict, 'deny');
      const asked: string[] = [];
      const isFqdnAddress = (list: number, address: string) => {
        asked.push(`${list} ${address}`);
        return true;
      };
      assert.equal(askOne(objects, web, to, { port, isFqdnAddress }).verdict, 'allow');
      assert.equal(asked.length, 1);
      assert.equal(askOne(objects, web, to, { isFqdnAddress }).verdict, 'deny');
      assert.equal(asked.length, 1, 'other lists have no names');
    });

    it('reports rules that depend on the FQDN cache if the cache is not given', () => {
      const at = (address: string, fields: Partial<ConnectionQuery> = {}) =>
        askOne(objects, web, { address }, { port: 443, ...fields }).egress;
      const { verdict, uncertain } = at('203.0.113.9');
      assert.deepEqual([verdict, uncertain], ['deny', ['AdminNetworkPolicy a spec.egress[0]']]);
      const unknown = at('203.0.113.9', { isFqdnAddress: () => false });
      assert.deepEqual(unknown.uncertain, []);
      assert.deepEqual(unknown.notLearned, [
        'AdminNetworkPolicy a spec.egress[0] (*.example.com, example.org)',
      ]);
      assert.deepEqual(at('203.0.113.9', { isFqdnAddress: () => true }).notLearned, []);
      assert.deepEqual(at('203.0.113.9', { port: 80 }).uncertain, []);
      assert.deepEqual(at('2001:db8::9').uncertain, ['AdminNetworkPolicy a spec.egress[0]']);
    });

    it('does not report uncertain rules with the same verdict', () => {
      const name = { kind: 'domainName' as const, pattern: 'example.org' };
      const allowed = [adminPolicy('a', { egress: [rule({ peers: [name] })] })];
      const { verdict, uncertain } = askOne(allowed, web, { address: '203.0.113.9' }).egress;
      assert.deepEqual([verdict, uncertain], ['allow', []]);
    });

    it('never match as ingress sources', () => {
      const peers = [{ kind: 'domainName' as const, pattern: '*.example.com' }];
      const closed = [networkPolicy('p', { subject: ONLY_WEB, ingress: [rule({ peers })] })];
      const { ingress } = askOne(closed, db, { name: 'x.example.com', address: '10.0.0.1' });
      assert.equal(ingress.verdict, 'deny');
    });
  });

  it('evaluates CIDR groups', () => {
    const peers = [{ kind: 'cidrGroups' as const, selector: [] }];
    const objects = [
      group('g', {}, ['203.0.113.0/24']),
      networkPolicy('p', { subject: ONLY_WEB, egress: [rule({ peers })] }),
    ];
    assert.equal(askOne(objects, web, { address: '203.0.113.1' }).verdict, 'allow');
    assert.equal(askOne(objects, web, { address: '203.0.114.1' }).verdict, 'deny');
  });

  for (const [title, object, reason] of [
    ['does not exist', pod('other'), 'default/it: the pod does not exist'],
    ['has no address', pod('it'), 'default/it: the pod has no address yet'],
    [
      'has finished',
      pod('it', { addresses: ['10.0.0.5'], finished: true }),
      'default/it: the pod has finished',
    ],
    [
      'has lost its address',
      pod('it', { addresses: ['10.0.0.1'], creationTimestamp: '2025-01-01T00:00:00Z' }),
      'default/it: the address of the pod belongs to a newer pod now',
    ],
  ] as const) {
    it(`throws UnknownPodError for a pod that ${title}`, () => {
      const it = { pod: 'default/it' };
      const expected = { name: 'UnknownPod', message: reason };
      assert.throws(() => ask([object], it, db), expected);
      assert.throws(() => ask([object], db, it), expected);
    });
  }
});
