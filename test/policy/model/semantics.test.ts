/** Each sentence of what policy means, held by the rules, the oracle and the explanation alike. */
import assert from 'node:assert/strict';
import type { Policy, PolicyPeer, PortMatch } from '../../../api/policy-objects.ts';
import { checkedVerdict } from '../harness.ts';
import {
  adminPolicy,
  baselinePolicy,
  clusterPolicy,
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
import type { Flow, Verdict } from '../oracle.ts';

/** Addresses of what tests connect, one for each family. */
const ADDRESSES = {
  web: ['10.0.0.1', 'fd00::1'],
  db: ['10.0.0.2', 'fd00::2'],
  far: ['10.0.1.3', 'fd00:0:0:1::3'],
  red: ['10.0.0.4', 'fd00::4'],
  node: ['192.168.0.1', 'fd00:1::1'],
  otherNode: ['192.168.0.2', 'fd00:1::2'],
  outside: ['203.0.113.5', '2001:db8::5'],
  outside2: ['203.0.113.200', '2001:db8:2::5'],
} as const;
type Name = keyof typeof ADDRESSES;

const WEB = pod('web', {
  addresses: ADDRESSES.web,
  namedPorts: [{ name: 'http', protocol: 'TCP', port: 80 }],
});
const DB = pod('db', {
  addresses: ADDRESSES.db,
  namedPorts: [
    { name: 'http', protocol: 'TCP', port: 8080 },
    { name: 'dns', protocol: 'UDP', port: 53 },
  ],
});
const FAR = pod('far', { addresses: ADDRESSES.far, nodeName: THERE });
/** In a namespace of its own. */
const RED = pod('red', { namespace: 'red', addresses: ADDRESSES.red });

const CLUSTER: readonly TestObject[] = [
  namespace('default', { team: 'blue' }),
  namespace('red', { team: 'red' }),
  node(HERE, ADDRESSES.node, { zone: 'a' }),
  node(THERE, ADDRESSES.otherNode, { zone: 'b' }),
  WEB,
  DB,
  FAR,
  RED,
];

/** What becomes of a connection in the cluster with these objects added: the same in both families. */
function connects(
  objects: readonly TestObject[],
  from: Name,
  to: Name,
  port = 80,
  protocol: Flow['protocol'] = 'TCP',
): Verdict {
  const all = new Map(
    [...CLUSTER, ...objects].map((object) => [`${object.kind} ${object.key}`, object]),
  );
  const names = new Map<string, readonly string[]>([
    ['example.com', ADDRESSES.outside],
    ['www.example.com', ADDRESSES.outside2],
  ]);
  const verdicts = ([0, 1] as const).map((family) => {
    const flow = { from: ADDRESSES[from][family], to: ADDRESSES[to][family], port, protocol };
    return checkedVerdict(all.values(), flow, names);
  });
  assert.equal(verdicts[0], verdicts[1], 'the families');
  return verdicts[0] as Verdict;
}

type Case = readonly [
  from: Name,
  to: Name,
  expected: Verdict,
  port?: number,
  protocol?: Flow['protocol'],
];

/** One sentence, and the connections that show it. */
function sentence(title: string, objects: readonly TestObject[], cases: readonly Case[]): void {
  it(title, () => {
    for (const [from, to, expected, port = 80, protocol = 'TCP'] of cases) {
      assert.equal(
        connects(objects, from, to, port, protocol),
        expected,
        `${from} to ${to}, ${protocol} ${port}`,
      );
    }
  });
}

const only = (app: string) => ({ namespaces: 'default', pods: labelled({ app }) });
const fromPeers = (...peers: PolicyPeer[]) => networkPolicy('p', { ingress: [rule({ peers })] });
const toPeers = (...peers: PolicyPeer[]) => networkPolicy('p', { egress: [rule({ peers })] });
const onPorts = (...ports: PortMatch[]) => networkPolicy('p', { ingress: [rule({ ports })] });
const deny = (fields: Partial<Policy> = {}) => ({
  subject: only('web'),
  ingress: [rule({ action: 'Deny' as const })],
  ...fields,
});

describe('semantics: what network policy means', () => {
  describe('isolation', () => {
    sentence(
      'without policies everything is allowed',
      [],
      [
        ['web', 'db', 'allow'],
        ['outside', 'web', 'allow'],
        ['web', 'outside', 'allow', 0, 'ICMP'],
      ],
    );
    sentence(
      'a policy for one direction isolates in that and not in the other',
      [networkPolicy('p', { subject: only('web'), ingress: [] })],
      [
        ['db', 'web', 'deny'],
        ['outside', 'web', 'deny', 0, 'ICMP'],
        ['web', 'db', 'allow'],
        ['db', 'outside', 'allow'],
      ],
    );
    sentence(
      'and the same for egress',
      [networkPolicy('p', { subject: only('web'), egress: [] })],
      [
        ['web', 'db', 'deny'],
        ['web', 'outside', 'deny', 53, 'UDP'],
        ['db', 'web', 'allow'],
      ],
    );
    sentence(
      'it is about pods of its own namespace only',
      [networkPolicy('p', { ingress: [] })],
      [
        ['web', 'red', 'allow'],
        ['red', 'web', 'deny'],
      ],
    );
    sentence(
      'what any of several policies allows is allowed',
      [
        networkPolicy('p', { ingress: [rule({ peers: [peerPods(labelled({ app: 'db' }))] })] }),
        networkPolicy('q', { ingress: [rule({ peers: [peerPods([], 'red')] })] }),
        networkPolicy('r', { ingress: [] }),
      ],
      [
        ['db', 'web', 'allow'],
        ['red', 'web', 'allow'],
        ['far', 'web', 'deny'],
      ],
    );
    sentence(
      'both ends have to allow it',
      [
        networkPolicy('p', { subject: only('web'), egress: [rule()] }),
        networkPolicy('q', { subject: only('db'), ingress: [] }),
      ],
      [
        ['web', 'db', 'deny'],
        ['web', 'far', 'allow'],
      ],
    );
    sentence(
      'egress that is denied stays denied where ingress is allowed',
      [
        networkPolicy('p', { subject: only('web'), egress: [] }),
        networkPolicy('q', { subject: only('db'), ingress: [rule()] }),
      ],
      [
        ['web', 'db', 'deny'],
        ['far', 'db', 'allow'],
      ],
    );
    it('pods of another node are judged there, and not here', () => {
      const isolated = networkPolicy('p', { subject: only('far'), ingress: [], egress: [] });
      const flow = { from: '10.0.0.1', to: '10.0.1.3', port: 80, protocol: 'TCP' as const };
      assert.equal(checkedVerdict([...CLUSTER, isolated], flow), 'allow');
    });
  });

  describe('peers', () => {
    sentence(
      'none are nobody',
      [fromPeers()],
      [
        ['db', 'web', 'deny'],
        ['outside', 'web', 'deny'],
      ],
    );
    sentence(
      'missing they are whoever',
      [networkPolicy('p', { ingress: [rule()] })],
      [
        ['db', 'web', 'allow'],
        ['outside', 'web', 'allow'],
      ],
    );
    sentence(
      'selectors of pods and namespaces in one peer hold together',
      [fromPeers(peerPods(labelled({ app: 'db' }), labelled({ team: 'red' })))],
      [
        ['db', 'web', 'deny'],
        ['red', 'web', 'deny'],
      ],
    );
    sentence(
      'in two peers either holds',
      [fromPeers(peerPods(labelled({ app: 'db' })), peerPods([], labelled({ team: 'red' })))],
      [
        ['db', 'web', 'allow'],
        ['red', 'web', 'allow'],
        ['far', 'web', 'deny'],
        ['outside', 'web', 'deny'],
      ],
    );
    sentence(
      'an empty selector of pods has all of the namespace',
      [fromPeers(peerPods([]))],
      [
        ['db', 'web', 'allow'],
        ['far', 'web', 'allow'],
        ['red', 'web', 'deny'],
      ],
    );
    sentence(
      'an empty selector of namespaces has all pods, and nobody else',
      [fromPeers(peerPods([], []))],
      [
        ['red', 'web', 'allow'],
        ['far', 'web', 'allow'],
        ['outside', 'web', 'deny'],
        ['otherNode', 'web', 'deny'],
      ],
    );
    sentence(
      'matchExpressions',
      [
        fromPeers(
          peerPods([requirement('app', 'NotIn', 'db'), requirement('legacy', 'DoesNotExist')]),
          peerPods([requirement('app', 'Exists')], [requirement('team', 'In', 'green', 'red')]),
        ),
      ],
      [
        ['db', 'web', 'deny'],
        ['far', 'web', 'allow'],
        ['red', 'web', 'allow'],
      ],
    );
    it('a namespace has its name as a label, also without an object', () => {
      const peers = [peerPods([], labelled({ 'kubernetes.io/metadata.name': 'red' }))];
      const policy = networkPolicy('p', { ingress: [rule({ peers })] });
      const flow = { from: '10.0.0.4', to: '10.0.0.1', port: 80, protocol: 'TCP' as const };
      assert.equal(checkedVerdict([WEB, RED, policy], flow), 'allow');
      assert.equal(checkedVerdict([WEB, RED, namespace('red'), policy], flow), 'allow');
      assert.equal(checkedVerdict([WEB, { ...RED, namespace: 'green' }, policy], flow), 'deny');
    });
    sentence(
      'an ipBlock has what is in it and not in its exceptions',
      [
        fromPeers(
          network('203.0.113.0/24', '203.0.113.128/25'),
          network('2001:db8::/32', '2001:db8:2::/48'),
        ),
      ],
      [
        ['outside', 'web', 'allow'],
        ['outside2', 'web', 'deny'],
        ['db', 'web', 'deny'],
      ],
    );
    sentence(
      'an exception of one block does not hold for another',
      [
        fromPeers(
          network('203.0.113.0/24', '203.0.113.128/25'),
          network('203.0.113.192/26'),
          network('2001:db8::/32', '2001:db8:2::/48'),
          network('2001:db8:2::/64'),
        ),
      ],
      [['outside2', 'web', 'allow']],
    );
    sentence(
      'a block has pods too',
      [fromPeers(network('0.0.0.0/0'), network('::/0'))],
      [
        ['db', 'web', 'allow'],
        ['outside', 'web', 'allow'],
      ],
    );
    it('a block of one family has nobody in the other', () => {
      const policy = toPeers(network('0.0.0.0/0'));
      const flow = { port: 80, protocol: 'TCP' as const };
      assert.equal(
        checkedVerdict([WEB, policy], { from: '10.0.0.1', to: '203.0.113.5', ...flow }),
        'allow',
      );
      assert.equal(
        checkedVerdict([WEB, policy], { from: 'fd00::1', to: '2001:db8::5', ...flow }),
        'deny',
      );
    });
    sentence(
      'nodes are their addresses, not the pods on them',
      [
        adminPolicy('a', {
          egress: [
            rule({ peers: [{ kind: 'nodes', selector: labelled({ zone: 'b' }) }] }),
            rule({ action: 'Deny' }),
          ],
        }),
      ],
      [
        ['web', 'otherNode', 'allow'],
        ['web', 'node', 'deny'],
        ['web', 'far', 'deny'],
      ],
    );
    sentence(
      'domain names have the addresses that were learned; a wildcard has not the apex',
      [
        adminPolicy('a', {
          egress: [
            rule({ peers: [{ kind: 'domainName', pattern: '*.example.com' }], ports: [tcp(443)] }),
            rule({ peers: [{ kind: 'domainName', pattern: 'example.com' }], ports: [tcp(80)] }),
            rule({ action: 'Deny', peers: [network('0.0.0.0/0'), network('::/0')] }),
          ],
        }),
      ],
      [
        ['web', 'outside', 'allow', 80],
        ['web', 'outside', 'deny', 443],
        ['web', 'outside2', 'allow', 443],
        ['web', 'outside2', 'deny', 80],
        // Neither the pod's resolver nor anything else is allowed by it.
        ['web', 'db', 'deny', 53, 'UDP'],
      ],
    );
  });

  describe('CIDR groups', () => {
    const groups = [
      group('a', { env: 'cloud-1' }, ['203.0.113.0/25', '2001:db8::/48']),
      group('b', { env: 'cloud-2' }, ['203.0.113.128/25', '2001:db8:2::/48']),
    ];
    const allowed = (selector: Extract<PolicyPeer, { kind: 'cidrGroups' }>['selector']) =>
      adminPolicy('a', {
        egress: [rule({ peers: [{ kind: 'cidrGroups', selector }] }), rule({ action: 'Deny' })],
      });
    sentence(
      'are selected by their labels',
      [...groups, allowed(labelled({ env: 'cloud-1' }))],
      [
        ['web', 'outside', 'allow'],
        ['web', 'outside2', 'deny'],
      ],
    );
    sentence(
      'an empty selector has all of them',
      [...groups, allowed([])],
      [
        ['web', 'outside', 'allow'],
        ['web', 'outside2', 'allow'],
        ['web', 'db', 'deny'],
      ],
    );
    sentence(
      'of several selectors either holds, beside networks that are written',
      [
        ...groups,
        adminPolicy('a', {
          egress: [
            rule({
              peers: [
                { kind: 'cidrGroups', selector: labelled({ env: 'cloud-1' }) },
                { kind: 'cidrGroups', selector: labelled({ env: 'cloud-2' }) },
                network('10.0.0.2/32'),
                network('fd00::2/128'),
              ],
            }),
            rule({ action: 'Deny' }),
          ],
        }),
      ],
      [
        ['web', 'outside', 'allow'],
        ['web', 'outside2', 'allow'],
        ['web', 'db', 'allow'],
        ['web', 'red', 'deny'],
      ],
    );
    sentence(
      'none that is selected is nobody',
      [...groups, allowed(labelled({ env: 'x' }))],
      [['web', 'outside', 'deny']],
    );
  });

  describe('ports', () => {
    sentence('none are nothing', [onPorts()], [['db', 'web', 'deny']]);
    sentence(
      'missing they are all of all protocols',
      [networkPolicy('p', { ingress: [rule()] })],
      [
        ['db', 'web', 'allow', 65535, 'SCTP'],
        ['db', 'web', 'allow', 0, 'ICMP'],
      ],
    );
    sentence(
      'a port is of its protocol',
      [onPorts({ protocol: 'UDP', first: 53, last: 53 })],
      [
        ['db', 'web', 'allow', 53, 'UDP'],
        ['db', 'web', 'deny', 53, 'TCP'],
        ['db', 'web', 'deny', 53, 'SCTP'],
        ['db', 'web', 'deny', 0, 'ICMP'],
      ],
    );
    sentence(
      'a range has both its ends and nothing beyond',
      [onPorts(tcp(32000, 32768))],
      [
        ['db', 'web', 'deny', 31999],
        ['db', 'web', 'allow', 32000],
        ['db', 'web', 'allow', 32768],
        ['db', 'web', 'deny', 32769],
      ],
    );
    sentence(
      'a range may have all ports',
      [onPorts(tcp(1, 65535))],
      [
        ['db', 'web', 'allow', 1],
        ['db', 'web', 'allow', 65535],
        ['db', 'web', 'deny', 1, 'UDP'],
      ],
    );
    sentence(
      'ranges may overlap and touch',
      [onPorts(tcp(100, 200), tcp(150, 250), tcp(251, 300), tcp(302))],
      [
        ['db', 'web', 'deny', 99],
        ['db', 'web', 'allow', 200],
        ['db', 'web', 'allow', 250],
        ['db', 'web', 'allow', 251],
        ['db', 'web', 'deny', 301],
        ['db', 'web', 'allow', 302],
      ],
    );
    sentence(
      'node ports of another cluster (KEP-2079, story 1)',
      [
        networkPolicy('p', {
          subject: only('web'),
          egress: [
            rule({
              peers: [network('203.0.113.0/24'), network('2001:db8::/32')],
              ports: [tcp(30000, 32767)],
            }),
          ],
        }),
      ],
      [
        ['web', 'outside', 'allow', 30000],
        ['web', 'outside', 'allow', 32767],
        ['web', 'outside', 'deny', 443],
        ['web', 'db', 'deny', 30000],
      ],
    );
    sentence(
      'any port but two (KEP-2079, story 2)',
      [
        networkPolicy('p', {
          subject: only('web'),
          egress: [rule({ ports: [tcp(1, 110), tcp(112, 444), tcp(446, 65535)] })],
        }),
      ],
      [
        ['web', 'outside', 'deny', 111],
        ['web', 'outside', 'deny', 445],
        ['web', 'outside', 'allow', 110],
        ['web', 'outside', 'allow', 112],
        ['web', 'outside', 'allow', 446],
      ],
    );
    sentence(
      'passive FTP and nothing else (KEP-2079, story 3)',
      [
        networkPolicy('deny', { ingress: [] }),
        networkPolicy('ftp', {
          subject: only('web'),
          ingress: [rule({ ports: [tcp(21), tcp(49152, 65535)] })],
        }),
      ],
      [
        ['outside', 'web', 'allow', 21],
        ['db', 'web', 'allow', 49152],
        ['db', 'web', 'allow', 65535],
        ['db', 'web', 'deny', 49151],
        ['db', 'web', 'deny', 22],
      ],
    );
    sentence(
      'a named port of ingress is what the pod itself calls so',
      [onPorts({ protocol: 'TCP', name: 'http' })],
      [
        ['db', 'web', 'allow', 80],
        ['db', 'web', 'deny', 8080],
        ['web', 'db', 'allow', 8080],
        ['web', 'db', 'deny', 80],
        ['db', 'web', 'deny', 80, 'UDP'],
      ],
    );
    sentence(
      'a named port of egress is what each peer calls so',
      [
        networkPolicy('p', {
          subject: { namespaces: 'default', pods: [] },
          egress: [rule({ ports: [{ protocol: 'TCP', name: 'http' }], peers: [peerPods([])] })],
        }),
      ],
      [
        ['db', 'web', 'allow', 80],
        ['web', 'db', 'allow', 8080],
        ['web', 'db', 'deny', 80],
        ['web', 'far', 'deny', 80],
        ['web', 'outside', 'deny', 80],
      ],
    );
    sentence(
      'and of whoever, of every pod',
      [
        networkPolicy('p', {
          subject: only('web'),
          egress: [rule({ ports: [{ protocol: 'TCP', name: 'http' }] })],
        }),
      ],
      [
        ['web', 'db', 'allow', 8080],
        ['web', 'outside', 'deny', 8080],
      ],
    );
    sentence(
      'and of a block that has pods, of those',
      [
        networkPolicy('p', {
          subject: only('web'),
          egress: [
            rule({
              ports: [{ protocol: 'TCP', name: 'http' }],
              peers: [network('10.0.0.0/24'), network('fd00::/64')],
            }),
          ],
        }),
      ],
      [
        ['web', 'db', 'allow', 8080],
        ['web', 'db', 'deny', 80],
      ],
    );
    sentence(
      'a named port without a protocol has it in any',
      [
        adminPolicy('a', {
          ingress: [
            rule({ ports: [{ protocol: undefined, name: 'dns' }] }),
            rule({ action: 'Deny' }),
          ],
        }),
      ],
      [
        ['web', 'db', 'allow', 53, 'UDP'],
        ['web', 'db', 'deny', 53, 'TCP'],
      ],
    );
    sentence(
      'a named port is not one of another protocol',
      [onPorts({ protocol: 'TCP', name: 'dns' })],
      [['web', 'db', 'deny', 53, 'UDP']],
    );
    sentence(
      'names and numbers may stand together',
      [onPorts({ protocol: 'TCP', name: 'http' }, tcp(9000))],
      [
        ['db', 'web', 'allow', 80],
        ['db', 'web', 'allow', 9000],
        ['db', 'web', 'deny', 9001],
      ],
    );
  });

  describe('who is never judged', () => {
    const closed = [networkPolicy('p', { ingress: [], egress: [] })];
    sentence('a node reaches its own pods, other nodes do not', closed, [
      ['node', 'web', 'allow'],
      ['otherNode', 'web', 'deny'],
    ]);
    sentence('a pod may not reach its node if it is isolated', closed, [['web', 'node', 'deny']]);
    sentence(
      'a pod reaches itself',
      [...closed, adminPolicy('a', deny())],
      [['web', 'web', 'allow']],
    );

    const onHost = (nodeName: string, addresses: readonly string[]) =>
      pod('host', { nodeName, addresses, hostNetwork: true, labels: { app: 'web' } });
    sentence(
      'a pod on the host network is the node to policy',
      [...closed, onHost(HERE, ADDRESSES.node)],
      [
        ['node', 'outside', 'allow'],
        ['outside', 'node', 'allow'],
        ['node', 'web', 'allow'],
      ],
    );
    sentence(
      'and never a peer as a pod',
      [onHost(THERE, ADDRESSES.otherNode), fromPeers(peerPods([], []))],
      [
        ['otherNode', 'web', 'deny'],
        ['far', 'web', 'allow'],
      ],
    );
    sentence(
      'though its address may be in a block',
      [
        onHost(THERE, ADDRESSES.otherNode),
        fromPeers(network('192.168.0.0/24'), network('fd00:1::/64')),
      ],
      [['otherNode', 'web', 'allow']],
    );
    sentence(
      'a finished pod has no address',
      [...closed, { ...WEB, finished: true }],
      [
        ['web', 'outside', 'allow'],
        ['outside', 'web', 'allow'],
      ],
    );
    sentence(
      'nor is it a peer',
      [fromPeers(peerPods([])), { ...DB, finished: true }],
      [['db', 'web', 'deny']],
    );
  });

  describe('an address that two pods have', () => {
    const policy = networkPolicy('p', { subject: only('web'), ingress: [] });
    const other = (name: string, creationTimestamp: string) =>
      pod(name, { addresses: ADDRESSES.web, creationTimestamp });
    sentence(
      'is of the one created later',
      [policy, other('new', '2026-01-02T00:00:00Z')],
      [['db', 'web', 'allow']],
    );
    sentence(
      'not of an older one',
      [policy, other('old', '2025-01-01T00:00:00Z')],
      [['db', 'web', 'deny']],
    );
    sentence(
      'of two as old, of the later by name',
      [policy, other('zzz', WEB.creationTimestamp)],
      [['db', 'web', 'allow']],
    );
    sentence(
      'not of the earlier by name',
      [policy, other('aaa', WEB.creationTimestamp)],
      [['db', 'web', 'deny']],
    );
    sentence(
      'one from a manifest is the youngest',
      [policy, other('manifest', '')],
      [['db', 'web', 'allow']],
    );
    sentence(
      'unless the later one has finished',
      [policy, { ...other('new', '2026-01-02T00:00:00Z'), finished: true }],
      [['db', 'web', 'deny']],
    );
  });

  describe('tiers', () => {
    const open = networkPolicy('open', { subject: only('web'), ingress: [rule()] });
    const closed = networkPolicy('closed', { subject: only('web'), ingress: [] });
    const fromDb = { peers: [peerPods(labelled({ app: 'db' }))] };

    sentence(
      'Admin denies what a NetworkPolicy allows',
      [open, adminPolicy('a', deny())],
      [
        ['db', 'web', 'deny'],
        ['web', 'db', 'allow'],
      ],
    );
    sentence(
      'Admin allows what a NetworkPolicy denies',
      [closed, adminPolicy('a', { subject: only('web'), ingress: [rule(fromDb)] })],
      [
        ['db', 'web', 'allow'],
        ['far', 'web', 'deny'],
      ],
    );
    sentence(
      'the first rule that matches decides',
      [
        adminPolicy('a', {
          subject: only('web'),
          ingress: [rule({ ...fromDb }), rule({ action: 'Deny' }), rule()],
        }),
      ],
      [
        ['db', 'web', 'allow'],
        ['far', 'web', 'deny'],
      ],
    );
    sentence(
      'lower priority goes first, whatever the names',
      [
        adminPolicy('z', { subject: only('web'), priority: 1, ingress: [rule()] }),
        adminPolicy('a', { ...deny(), priority: 2 }),
      ],
      [['db', 'web', 'allow']],
    );
    sentence(
      'numbers are compared, not digits',
      [
        adminPolicy('z', { subject: only('web'), priority: 9, ingress: [rule()] }),
        adminPolicy('a', { ...deny(), priority: 10 }),
      ],
      [['db', 'web', 'allow']],
    );
    sentence(
      'of one priority, by name, also across kinds',
      [
        clusterPolicy('a', 'Admin', { subject: only('web'), ingress: [rule()] }),
        adminPolicy('b', deny()),
      ],
      [['db', 'web', 'allow']],
    );
    sentence(
      'of one name, by kind',
      [
        clusterPolicy('a', 'Admin', { subject: only('web'), ingress: [rule()] }),
        adminPolicy('a', deny()),
      ],
      [['db', 'web', 'deny']],
    );
    sentence(
      'Pass goes on to NetworkPolicies, past the rest of the tier',
      [
        open,
        adminPolicy('a', { subject: only('web'), ingress: [rule({ ...fromDb, action: 'Pass' })] }),
        adminPolicy('b', deny()),
      ],
      [
        ['db', 'web', 'allow'],
        ['far', 'web', 'deny'],
      ],
    );
    sentence(
      'and these then decide',
      [closed, adminPolicy('a', { subject: only('web'), ingress: [rule({ action: 'Pass' })] })],
      [['db', 'web', 'deny']],
    );
    sentence(
      'Pass goes on to Baseline where nothing isolates the pod',
      [
        adminPolicy('a', { subject: only('web'), ingress: [rule({ action: 'Pass' })] }),
        baselinePolicy(deny()),
      ],
      [['db', 'web', 'deny']],
    );
    sentence(
      'what Admin does not mention goes on as well',
      [adminPolicy('a', { ingress: [rule(fromDb)] }), closed],
      [
        ['db', 'web', 'allow'],
        ['far', 'web', 'deny'],
      ],
    );
    sentence(
      'Baseline denies by default',
      [baselinePolicy(deny())],
      [
        ['db', 'web', 'deny'],
        ['web', 'db', 'allow'],
      ],
    );
    sentence('a NetworkPolicy lifts it', [open, baselinePolicy(deny())], [['db', 'web', 'allow']]);
    sentence(
      'a NetworkPolicy decides alone, also against what Baseline allows',
      [closed, baselinePolicy({ ingress: [rule()] })],
      [['db', 'web', 'deny']],
    );
    sentence(
      'a NetworkPolicy for ingress does not lift a Baseline rule for egress',
      [open, baselinePolicy({ subject: only('web'), egress: [rule({ action: 'Deny' })] })],
      [
        ['db', 'web', 'allow'],
        ['web', 'db', 'deny'],
      ],
    );
    sentence(
      'in Baseline, too, the first rule that matches decides',
      [baselinePolicy({ ingress: [rule(fromDb), rule({ action: 'Deny' })] })],
      [
        ['db', 'web', 'allow'],
        ['far', 'web', 'deny'],
      ],
    );
    sentence(
      'a BaselineAdminNetworkPolicy goes first, then ClusterNetworkPolicies by priority and name',
      [
        clusterPolicy('a', 'Baseline', { ...deny(), priority: 0 }),
        baselinePolicy({ subject: only('web'), ingress: [rule(fromDb)] }),
        clusterPolicy('z', 'Baseline', { subject: only('db'), priority: 1, ingress: [rule()] }),
        clusterPolicy('b', 'Baseline', { ...deny(), subject: only('db'), priority: 2 }),
      ],
      [
        ['db', 'web', 'allow'],
        ['far', 'web', 'deny'],
        ['far', 'db', 'allow'],
      ],
    );
    sentence(
      'Pass in Baseline ends in the default, which allows',
      [
        clusterPolicy('a', 'Baseline', {
          subject: only('web'),
          ingress: [rule({ ...fromDb, action: 'Pass' })],
        }),
        clusterPolicy('b', 'Baseline', deny()),
      ],
      [
        ['db', 'web', 'allow'],
        ['far', 'web', 'deny'],
      ],
    );
    sentence(
      'Pass in Admin, then in Baseline',
      [
        clusterPolicy('a', 'Admin', { subject: only('web'), ingress: [rule({ action: 'Pass' })] }),
        clusterPolicy('b', 'Baseline', {
          subject: only('web'),
          ingress: [rule({ action: 'Pass' })],
        }),
        clusterPolicy('c', 'Baseline', deny()),
      ],
      [['db', 'web', 'allow']],
    );
    sentence(
      'a deny of everything has pods and the world alike',
      [
        adminPolicy('a', {
          subject: only('web'),
          egress: [rule({ action: 'Deny', peers: [network('0.0.0.0/0'), network('::/0')] })],
        }),
      ],
      [
        ['web', 'db', 'deny'],
        ['web', 'outside', 'deny'],
      ],
    );
    sentence(
      'a tier that has no rules has no say',
      [adminPolicy('a', { ingress: [], egress: [] }), baselinePolicy({ ingress: [] })],
      [['db', 'web', 'allow']],
    );
  });
});
