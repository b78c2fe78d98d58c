/** The semantics of policies, checked for compiled rules, the oracle and `explain` alike. */
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

/** An IPv4 and an IPv6 address of each end. */
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
/** A pod in another namespace. */
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

/**
 * The verdict on a connection in the cluster with additional objects, which must be equal in both
 * IP families.
 */
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
  assert.equal(verdicts[0], verdicts[1], 'verdicts of the IP families');
  return verdicts[0] as Verdict;
}

type Case = readonly [
  from: Name,
  to: Name,
  expected: Verdict,
  port?: number,
  protocol?: Flow['protocol'],
];

/** A test with the expected verdicts of connections. */
function testVerdicts(title: string, objects: readonly TestObject[], cases: readonly Case[]): void {
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

describe('semantics: evaluation of network policies', () => {
  describe('isolation', () => {
    testVerdicts(
      'allows everything without policies',
      [],
      [
        ['web', 'db', 'allow'],
        ['outside', 'web', 'allow'],
        ['web', 'outside', 'allow', 0, 'ICMP'],
      ],
    );
    testVerdicts(
      'isolates pods in the direction of the policy only',
      [networkPolicy('p', { subject: only('web'), ingress: [] })],
      [
        ['db', 'web', 'deny'],
        ['outside', 'web', 'deny', 0, 'ICMP'],
        ['web', 'db', 'allow'],
        ['db', 'outside', 'allow'],
      ],
    );
    testVerdicts(
      'isolates pods for egress only with an egress policy',
      [networkPolicy('p', { subject: only('web'), egress: [] })],
      [
        ['web', 'db', 'deny'],
        ['web', 'outside', 'deny', 53, 'UDP'],
        ['db', 'web', 'allow'],
      ],
    );
    testVerdicts(
      'selects pods of its own namespace only',
      [networkPolicy('p', { ingress: [] })],
      [
        ['web', 'red', 'allow'],
        ['red', 'web', 'deny'],
      ],
    );
    testVerdicts(
      'allows what any of several NetworkPolicies allows',
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
    testVerdicts(
      'requires that both ends allow a connection',
      [
        networkPolicy('p', { subject: only('web'), egress: [rule()] }),
        networkPolicy('q', { subject: only('db'), ingress: [] }),
      ],
      [
        ['web', 'db', 'deny'],
        ['web', 'far', 'allow'],
      ],
    );
    testVerdicts(
      'denies when egress is denied and ingress is allowed',
      [
        networkPolicy('p', { subject: only('web'), egress: [] }),
        networkPolicy('q', { subject: only('db'), ingress: [rule()] }),
      ],
      [
        ['web', 'db', 'deny'],
        ['far', 'db', 'allow'],
      ],
    );
    it('does not evaluate policies for pods on another node', () => {
      const isolated = networkPolicy('p', { subject: only('far'), ingress: [], egress: [] });
      const flow = { from: '10.0.0.1', to: '10.0.1.3', port: 80, protocol: 'TCP' as const };
      assert.equal(checkedVerdict([...CLUSTER, isolated], flow), 'allow');
    });
  });

  describe('peers', () => {
    testVerdicts(
      'match nothing when the list is empty',
      [fromPeers()],
      [
        ['db', 'web', 'deny'],
        ['outside', 'web', 'deny'],
      ],
    );
    testVerdicts(
      'match everything when the list is missing',
      [networkPolicy('p', { ingress: [rule()] })],
      [
        ['db', 'web', 'allow'],
        ['outside', 'web', 'allow'],
      ],
    );
    testVerdicts(
      'must match both podSelector and namespaceSelector of one peer',
      [fromPeers(peerPods(labelled({ app: 'db' }), labelled({ team: 'red' })))],
      [
        ['db', 'web', 'deny'],
        ['red', 'web', 'deny'],
      ],
    );
    testVerdicts(
      'match either of two peers',
      [fromPeers(peerPods(labelled({ app: 'db' })), peerPods([], labelled({ team: 'red' })))],
      [
        ['db', 'web', 'allow'],
        ['red', 'web', 'allow'],
        ['far', 'web', 'deny'],
        ['outside', 'web', 'deny'],
      ],
    );
    testVerdicts(
      'match all pods of the namespace with an empty podSelector',
      [fromPeers(peerPods([]))],
      [
        ['db', 'web', 'allow'],
        ['far', 'web', 'allow'],
        ['red', 'web', 'deny'],
      ],
    );
    testVerdicts(
      'match all pods, and only pods, with an empty namespaceSelector',
      [fromPeers(peerPods([], []))],
      [
        ['red', 'web', 'allow'],
        ['far', 'web', 'allow'],
        ['outside', 'web', 'deny'],
        ['otherNode', 'web', 'deny'],
      ],
    );
    testVerdicts(
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
    it('match the label kubernetes.io/metadata.name, even without a Namespace object', () => {
      const peers = [peerPods([], labelled({ 'kubernetes.io/metadata.name': 'red' }))];
      const policy = networkPolicy('p', { ingress: [rule({ peers })] });
      const flow = { from: '10.0.0.4', to: '10.0.0.1', port: 80, protocol: 'TCP' as const };
      assert.equal(checkedVerdict([WEB, RED, policy], flow), 'allow');
      assert.equal(checkedVerdict([WEB, RED, namespace('red'), policy], flow), 'allow');
      assert.equal(checkedVerdict([WEB, { ...RED, namespace: 'green' }, policy], flow), 'deny');
    });
    testVerdicts(
      'match an ipBlock without its exceptions',
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
    testVerdicts(
      'apply exceptions to their own ipBlock only',
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
    testVerdicts(
      'match pods in an ipBlock',
      [fromPeers(network('0.0.0.0/0'), network('::/0'))],
      [
        ['db', 'web', 'allow'],
        ['outside', 'web', 'allow'],
      ],
    );
    it('do not match the other IP family with an ipBlock', () => {
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
    testVerdicts(
      'match addresses of nodes, not the pods on them',
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
    testVerdicts(
      'match the FQDN cache for domain names; a wildcard excludes the apex',
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
        // Domain names do not allow DNS queries or anything else.
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
    testVerdicts(
      'are selected by label',
      [...groups, allowed(labelled({ env: 'cloud-1' }))],
      [
        ['web', 'outside', 'allow'],
        ['web', 'outside2', 'deny'],
      ],
    );
    testVerdicts(
      'are all selected by an empty selector',
      [...groups, allowed([])],
      [
        ['web', 'outside', 'allow'],
        ['web', 'outside2', 'allow'],
        ['web', 'db', 'deny'],
      ],
    );
    testVerdicts(
      'match if one of several selectors or networks does',
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
    testVerdicts(
      'match nothing when no group is selected',
      [...groups, allowed(labelled({ env: 'x' }))],
      [['web', 'outside', 'deny']],
    );
  });

  describe('ports', () => {
    testVerdicts('match nothing when the list is empty', [onPorts()], [['db', 'web', 'deny']]);
    testVerdicts(
      'match all ports of all protocols when the list is missing',
      [networkPolicy('p', { ingress: [rule()] })],
      [
        ['db', 'web', 'allow', 65535, 'SCTP'],
        ['db', 'web', 'allow', 0, 'ICMP'],
      ],
    );
    testVerdicts(
      'match their own protocol only',
      [onPorts({ protocol: 'UDP', first: 53, last: 53 })],
      [
        ['db', 'web', 'allow', 53, 'UDP'],
        ['db', 'web', 'deny', 53, 'TCP'],
        ['db', 'web', 'deny', 53, 'SCTP'],
        ['db', 'web', 'deny', 0, 'ICMP'],
      ],
    );
    testVerdicts(
      'include both ends of a range',
      [onPorts(tcp(32000, 32768))],
      [
        ['db', 'web', 'deny', 31999],
        ['db', 'web', 'allow', 32000],
        ['db', 'web', 'allow', 32768],
        ['db', 'web', 'deny', 32769],
      ],
    );
    testVerdicts(
      'may be a range of all ports',
      [onPorts(tcp(1, 65535))],
      [
        ['db', 'web', 'allow', 1],
        ['db', 'web', 'allow', 65535],
        ['db', 'web', 'deny', 1, 'UDP'],
      ],
    );
    testVerdicts(
      'may be overlapping and adjacent ranges',
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
    testVerdicts(
      'match node ports of another cluster (KEP-2079, story 1)',
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
    testVerdicts(
      'match all ports except two (KEP-2079, story 2)',
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
    testVerdicts(
      'match passive FTP only (KEP-2079, story 3)',
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
    testVerdicts(
      'resolve a named port of ingress in the subject pod',
      [onPorts({ protocol: 'TCP', name: 'http' })],
      [
        ['db', 'web', 'allow', 80],
        ['db', 'web', 'deny', 8080],
        ['web', 'db', 'allow', 8080],
        ['web', 'db', 'deny', 80],
        ['db', 'web', 'deny', 80, 'UDP'],
      ],
    );
    testVerdicts(
      'resolve a named port of egress in each peer',
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
    testVerdicts(
      'resolve a named port of egress without peers in every pod',
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
    testVerdicts(
      'resolve a named port of egress to an ipBlock in the pods in it',
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
    testVerdicts(
      'match a named port without protocol in any protocol',
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
    testVerdicts(
      'do not match a named port of another protocol',
      [onPorts({ protocol: 'TCP', name: 'dns' })],
      [['web', 'db', 'deny', 53, 'UDP']],
    );
    testVerdicts(
      'may mix names and numbers',
      [onPorts({ protocol: 'TCP', name: 'http' }, tcp(9000))],
      [
        ['db', 'web', 'allow', 80],
        ['db', 'web', 'allow', 9000],
        ['db', 'web', 'deny', 9001],
      ],
    );
  });

  describe('exempt traffic', () => {
    const closed = [networkPolicy('p', { ingress: [], egress: [] })];
    testVerdicts('includes a node to its own pods, but not other nodes', closed, [
      ['node', 'web', 'allow'],
      ['otherNode', 'web', 'deny'],
    ]);
    testVerdicts('excludes an isolated pod to its node', closed, [['web', 'node', 'deny']]);
    testVerdicts(
      'includes a pod to itself',
      [...closed, adminPolicy('a', deny())],
      [['web', 'web', 'allow']],
    );

    const onHost = (nodeName: string, addresses: readonly string[]) =>
      pod('host', { nodeName, addresses, hostNetwork: true, labels: { app: 'web' } });
    testVerdicts(
      'includes hostNetwork pods, which count as the node',
      [...closed, onHost(HERE, ADDRESSES.node)],
      [
        ['node', 'outside', 'allow'],
        ['outside', 'node', 'allow'],
        ['node', 'web', 'allow'],
      ],
    );
    testVerdicts(
      'excludes hostNetwork pods from pod peers',
      [onHost(THERE, ADDRESSES.otherNode), fromPeers(peerPods([], []))],
      [
        ['otherNode', 'web', 'deny'],
        ['far', 'web', 'allow'],
      ],
    );
    testVerdicts(
      'lets an ipBlock match the address of a hostNetwork pod',
      [
        onHost(THERE, ADDRESSES.otherNode),
        fromPeers(network('192.168.0.0/24'), network('fd00:1::/64')),
      ],
      [['otherNode', 'web', 'allow']],
    );
    testVerdicts(
      'ignores the address of a finished pod',
      [...closed, { ...WEB, finished: true }],
      [
        ['web', 'outside', 'allow'],
        ['outside', 'web', 'allow'],
      ],
    );
    testVerdicts(
      'excludes finished pods from peers',
      [fromPeers(peerPods([])), { ...DB, finished: true }],
      [['db', 'web', 'deny']],
    );
  });

  describe('an address of two pods', () => {
    const policy = networkPolicy('p', { subject: only('web'), ingress: [] });
    const other = (name: string, creationTimestamp: string) =>
      pod(name, { addresses: ADDRESSES.web, creationTimestamp });
    testVerdicts(
      'belongs to the pod created later',
      [policy, other('new', '2026-01-02T00:00:00Z')],
      [['db', 'web', 'allow']],
    );
    testVerdicts(
      'does not belong to an older pod',
      [policy, other('old', '2025-01-01T00:00:00Z')],
      [['db', 'web', 'deny']],
    );
    testVerdicts(
      'belongs to the last by name of pods with equal creationTimestamp',
      [policy, other('zzz', WEB.creationTimestamp)],
      [['db', 'web', 'allow']],
    );
    testVerdicts(
      'does not belong to the first by name of pods with equal creationTimestamp',
      [policy, other('aaa', WEB.creationTimestamp)],
      [['db', 'web', 'deny']],
    );
    testVerdicts(
      'belongs to a pod from a manifest without creationTimestamp',
      [policy, other('manifest', '')],
      [['db', 'web', 'allow']],
    );
    testVerdicts(
      'does not belong to a finished pod',
      [policy, { ...other('new', '2026-01-02T00:00:00Z'), finished: true }],
      [['db', 'web', 'deny']],
    );
  });

  describe('tiers', () => {
    const open = networkPolicy('open', { subject: only('web'), ingress: [rule()] });
    const closed = networkPolicy('closed', { subject: only('web'), ingress: [] });
    const fromDb = { peers: [peerPods(labelled({ app: 'db' }))] };

    testVerdicts(
      'deny in Admin what a NetworkPolicy allows',
      [open, adminPolicy('a', deny())],
      [
        ['db', 'web', 'deny'],
        ['web', 'db', 'allow'],
      ],
    );
    testVerdicts(
      'allow in Admin what a NetworkPolicy denies',
      [closed, adminPolicy('a', { subject: only('web'), ingress: [rule(fromDb)] })],
      [
        ['db', 'web', 'allow'],
        ['far', 'web', 'deny'],
      ],
    );
    testVerdicts(
      'evaluate the first matching rule only',
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
    testVerdicts(
      'evaluate lower priority values first, regardless of names',
      [
        adminPolicy('z', { subject: only('web'), priority: 1, ingress: [rule()] }),
        adminPolicy('a', { ...deny(), priority: 2 }),
      ],
      [['db', 'web', 'allow']],
    );
    testVerdicts(
      'compare priorities as numbers',
      [
        adminPolicy('z', { subject: only('web'), priority: 9, ingress: [rule()] }),
        adminPolicy('a', { ...deny(), priority: 10 }),
      ],
      [['db', 'web', 'allow']],
    );
    testVerdicts(
      'order equal priorities by name, also across kinds',
      [
        clusterPolicy('a', 'Admin', { subject: only('web'), ingress: [rule()] }),
        adminPolicy('b', deny()),
      ],
      [['db', 'web', 'allow']],
    );
    testVerdicts(
      'order equal names by kind',
      [
        clusterPolicy('a', 'Admin', { subject: only('web'), ingress: [rule()] }),
        adminPolicy('a', deny()),
      ],
      [['db', 'web', 'deny']],
    );
    testVerdicts(
      'skip the rest of the Admin tier with action Pass',
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
    testVerdicts(
      'evaluate NetworkPolicies after action Pass',
      [closed, adminPolicy('a', { subject: only('web'), ingress: [rule({ action: 'Pass' })] })],
      [['db', 'web', 'deny']],
    );
    testVerdicts(
      'evaluate Baseline after action Pass when no NetworkPolicy isolates the pod',
      [
        adminPolicy('a', { subject: only('web'), ingress: [rule({ action: 'Pass' })] }),
        baselinePolicy(deny()),
      ],
      [['db', 'web', 'deny']],
    );
    testVerdicts(
      'evaluate lower tiers when no Admin rule matches',
      [adminPolicy('a', { ingress: [rule(fromDb)] }), closed],
      [
        ['db', 'web', 'allow'],
        ['far', 'web', 'deny'],
      ],
    );
    testVerdicts(
      'deny in Baseline when no NetworkPolicy isolates the pod',
      [baselinePolicy(deny())],
      [
        ['db', 'web', 'deny'],
        ['web', 'db', 'allow'],
      ],
    );
    testVerdicts(
      'a NetworkPolicy lifts it',
      [open, baselinePolicy(deny())],
      [['db', 'web', 'allow']],
    );
    testVerdicts(
      'skip Baseline when a NetworkPolicy isolates the pod',
      [closed, baselinePolicy({ ingress: [rule()] })],
      [['db', 'web', 'deny']],
    );
    testVerdicts(
      'keep Baseline egress rules when a NetworkPolicy isolates for ingress only',
      [open, baselinePolicy({ subject: only('web'), egress: [rule({ action: 'Deny' })] })],
      [
        ['db', 'web', 'allow'],
        ['web', 'db', 'deny'],
      ],
    );
    testVerdicts(
      'evaluate the first matching Baseline rule only',
      [baselinePolicy({ ingress: [rule(fromDb), rule({ action: 'Deny' })] })],
      [
        ['db', 'web', 'allow'],
        ['far', 'web', 'deny'],
      ],
    );
    testVerdicts(
      'evaluate the BaselineAdminNetworkPolicy before ClusterNetworkPolicies by priority and name',
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
    testVerdicts(
      'allow by default after action Pass in Baseline',
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
    testVerdicts(
      'allow by default after action Pass in Admin and in Baseline',
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
    testVerdicts(
      'deny pods and external addresses with a rule without peers',
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
    testVerdicts(
      'a tier that has no rules has no say',
      [adminPolicy('a', { ingress: [], egress: [] }), baselinePolicy({ ingress: [] })],
      [['db', 'web', 'allow']],
    );
  });
});
