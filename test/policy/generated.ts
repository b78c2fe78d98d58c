/**
 * Random clusters and changes for property tests. There are few names, labels and addresses, so
 * that pods share labels and addresses, lists share members, and networks overlap or are adjacent.
 */
import fc, { type Arbitrary } from 'fast-check';
import { cidrContains } from '../../api/addresses.ts';
import type {
  LabelSelector,
  Labels,
  NamedPort,
  Pod,
  PodSelection,
  Policy,
  PolicyPeer,
  PolicyRule,
  PortMatch,
} from '../../api/policy-objects.ts';
import { group, HERE, namespace, node, pod, type TestObject, THERE } from './objects.ts';
import type { Flow } from './oracle.ts';

export type Change =
  | { readonly upsert: TestObject }
  | { readonly remove: { readonly kind: TestObject['kind']; readonly key: string } };

const NODE_ADDRESSES = {
  [HERE]: ['192.168.0.1', 'fd00:1::1'],
  [THERE]: ['192.168.0.2', 'fd00:1::2'],
} as const;

/** Resolved addresses of domain names: external ones, and one of a pod. */
export const NAMES = new Map([
  ['example.com', ['203.0.113.5', '2001:db8::5']],
  ['www.example.com', ['203.0.113.200']],
  ['a.www.example.com', ['10.0.0.3', 'fd00::3']],
]);

const CIDRS = [
  '0.0.0.0/0',
  '10.0.0.0/29',
  '10.0.0.0/30',
  '10.0.0.2/31',
  '10.0.0.4/30',
  '10.0.0.3/32',
  '192.168.0.0/24',
  '203.0.113.0/25',
  '203.0.113.128/25',
  '::/0',
  'fd00::/125',
  'fd00::/126',
  'fd00::4/126',
  'fd00::3/128',
  '2001:db8::/32',
] as const;

const NAMED: readonly NamedPort[] = [
  { name: 'web', protocol: 'TCP', port: 80 },
  { name: 'web', protocol: 'TCP', port: 8080 },
  { name: 'web', protocol: 'UDP', port: 53 },
  { name: 'web', protocol: 'TCP', port: 53 },
  { name: 'dns', protocol: 'UDP', port: 53 },
];

/** Picks the first value more often than the others. */
function often<T>([first, ...others]: readonly [T, ...T[]], weight: number): Arbitrary<T> {
  const rest = others.map((other) => ({ arbitrary: fc.constant(other), weight: 1 }));
  return fc.oneof({ arbitrary: fc.constant(first), weight }, ...rest);
}

const labels: Arbitrary<Labels> = fc.record(
  { app: fc.constantFrom('x', 'y'), tier: fc.constantFrom('1', '2') },
  { requiredKeys: [] },
);

const requirement = fc.oneof(
  fc.record({
    key: fc.constantFrom('app', 'tier'),
    operator: fc.constantFrom('In' as const, 'NotIn' as const),
    values: fc.subarray(['1', 'x', 'y'], { minLength: 1 }),
  }),
  fc.record({
    key: fc.constantFrom('app', 'tier', 'constructor'),
    operator: fc.constantFrom('Exists' as const, 'DoesNotExist' as const),
    values: fc.constant([]),
  }),
);

const selector: Arbitrary<LabelSelector> = fc.array(requirement, { maxLength: 2, size: 'xsmall' });

const space = fc.constantFrom('blue', 'red');

const namespaceSelector: Arbitrary<LabelSelector> = fc.oneof(
  selector,
  space.map((name) => [
    { key: 'kubernetes.io/metadata.name', operator: 'In' as const, values: [name] },
  ]),
);

const somewhere: Arbitrary<PodSelection> = fc.record({
  namespaces: fc.oneof(space, namespaceSelector),
  pods: selector,
});

const anywhere: Arbitrary<PodSelection> = fc.record({
  namespaces: namespaceSelector,
  pods: selector,
});

const network: Arbitrary<PolicyPeer> = fc.constantFrom(...CIDRS).chain((cidr) => {
  const inside = CIDRS.filter((other) => {
    const [address = '', length] = other.split('/');
    return cidrContains(cidr, address) && Number(length) >= Number(cidr.split('/')[1]);
  });
  return fc.record({
    kind: fc.constant('network' as const),
    cidr: fc.constant(cidr),
    except: fc.oneof(
      fc.constant([]),
      fc.subarray(inside, { maxLength: Math.min(2, inside.length) }),
    ),
  });
});

const pods = somewhere.map((selection): PolicyPeer => ({ kind: 'pods', selection }));

const peer: Arbitrary<PolicyPeer> = fc.oneof(
  { arbitrary: pods, weight: 4 },
  { arbitrary: network, weight: 2 },
  fc.record({ kind: fc.constant('cidrGroups' as const), selector }),
  fc.record({ kind: fc.constant('nodes' as const), selector }),
  fc.record({
    kind: fc.constant('domainName' as const),
    pattern: fc.constantFrom('example.com', '*.example.com', '*.www.example.com'),
  }),
);

const port: Arbitrary<PortMatch> = fc.oneof(
  fc
    .tuple(
      fc.constantFrom('TCP' as const, 'UDP' as const, 'SCTP' as const),
      fc.constantFrom([80, 80], [79, 80], [81, 8080], [1, 65535], [53, 53], [1, 52]),
    )
    .map(([protocol, [first = 1, last = 1]]) => ({ protocol, first, last })),
  fc.record({
    protocol: fc.constantFrom('TCP' as const, 'UDP' as const, undefined),
    name: fc.constantFrom('web', 'dns'),
  }),
);

function rules(
  actions: readonly PolicyRule['action'][],
  peers: Arbitrary<PolicyPeer>,
): Arbitrary<readonly Omit<PolicyRule, 'path'>[]> {
  return fc.array(
    fc.record({
      name: fc.constant(''),
      action: fc.constantFrom(...actions),
      peers: fc.option(fc.array(peers, { maxLength: 2 }), { nil: undefined, freq: 5 }),
      ports: fc.option(fc.array(port, { maxLength: 2 }), { nil: undefined, freq: 2 }),
    }),
    { maxLength: 3, size: 'small' },
  );
}

interface PolicyChoice {
  readonly kind: Policy['kind'];
  readonly tiers: readonly Policy['tier'][];
  readonly names: readonly string[];
  readonly actions: readonly PolicyRule['action'][];
}

const KINDS: readonly PolicyChoice[] = [
  {
    kind: 'NetworkPolicy',
    tiers: ['NetworkPolicy'],
    names: ['blue/p', 'blue/q', 'red/p', 'red/q'],
    actions: ['Allow'],
  },
  {
    kind: 'AdminNetworkPolicy',
    tiers: ['Admin'],
    names: ['m', 'n'],
    actions: ['Allow', 'Deny', 'Pass'],
  },
  {
    kind: 'BaselineAdminNetworkPolicy',
    tiers: ['Baseline'],
    names: ['default'],
    actions: ['Allow', 'Deny'],
  },
  {
    kind: 'ClusterNetworkPolicy',
    tiers: ['Admin', 'Baseline'],
    names: ['a', 'm'],
    actions: ['Allow', 'Deny', 'Pass'],
  },
];

function policyOf({ kind, tiers, names, actions }: PolicyChoice): Arbitrary<Policy> {
  const isNamespaced = kind === 'NetworkPolicy';
  const written = (direction: string, some: readonly Omit<PolicyRule, 'path'>[] | undefined) =>
    some?.map((rule, at) => ({ ...rule, path: `spec.${direction}[${at}]` }));
  return fc
    .record({
      key: fc.constantFrom(...names),
      tier: fc.constantFrom(...tiers),
      priority: fc.constantFrom(0, 1),
      subject: anywhere,
      ingress: fc.option(rules(actions, isNamespaced ? fc.oneof(pods, network) : pods), {
        nil: undefined,
      }),
      egress: fc.option(rules(actions, peer), { nil: undefined }),
    })
    .map(({ key, priority, subject, ingress, egress, ...rest }) => {
      const [first = '', second] = key.split('/');
      return {
        kind,
        key,
        ...rest,
        namespace: second === undefined ? '' : first,
        name: second ?? first,
        uid: '',
        priority: kind === 'AdminNetworkPolicy' || kind === 'ClusterNetworkPolicy' ? priority : 0,
        subject: second === undefined ? subject : { ...subject, namespaces: first },
        ingress: written('ingress', ingress),
        egress: written('egress', egress),
        faults: [],
      };
    });
}

const policy = fc.oneof(
  { arbitrary: policyOf(KINDS[0] as PolicyChoice), weight: 2 },
  ...KINDS.slice(1).map((kind) => ({ arbitrary: policyOf(kind), weight: 1 })),
);

const POD_NAMES = ['blue/a', 'blue/b', 'blue/c', 'blue/d', 'red/a', 'red/b', 'red/c'] as const;
const POD_NUMBERS = [1, 2, 3, 4, 5, 6, 7];

const anyPod: Arbitrary<Pod> = fc
  .record({
    key: fc.constantFrom(...POD_NAMES),
    labels,
    number: fc.constantFrom(...POD_NUMBERS),
    families: often<readonly number[]>([[0, 1], [0], [1], []], 6),
    nodeName: often<typeof HERE | typeof THERE | undefined>([HERE, THERE, undefined], 5),
    creationTimestamp: fc.constantFrom('2026-01-01T00:00:00Z', '2026-01-02T00:00:00Z', ''),
    mode: often(['', 'finished', 'hostNetwork'], 12),
    namedPorts: fc.oneof(fc.constant([]), fc.subarray([...NAMED])),
  })
  .map(({ key, number, families, mode, nodeName, ...rest }) => {
    const [space = '', name = ''] = key.split('/');
    const hostNetwork = mode === 'hostNetwork';
    const own = [`10.0.0.${number}`, `fd00::${number}`];
    const addresses = hostNetwork && nodeName !== undefined ? NODE_ADDRESSES[nodeName] : own;
    return pod(name, {
      namespace: space,
      nodeName,
      hostNetwork,
      finished: mode === 'finished',
      addresses: addresses.filter((_, at) => families.includes(at)),
      ...rest,
    });
  });

const anyNode = fc
  .record({ name: fc.constantFrom(HERE, THERE), labels, families: fc.subarray([0, 1]) })
  .map(({ name, labels: some, families }) => {
    const addresses = NODE_ADDRESSES[name].filter((_, at) => families.includes(at));
    // Nodes may share an address (of a load balancer), and a node may have the address of a pod.
    return node(name, name === THERE ? [...addresses, '10.0.0.6', '192.168.0.9'] : addresses, some);
  });

const thirdNode = labels.map((some) => node('node-c', ['192.168.0.9'], some));

const anyGroup = fc
  .record({
    name: fc.constantFrom('g', 'h', 'i'),
    labels,
    cidrs: fc.subarray([...CIDRS], { maxLength: 4 }),
  })
  .map(({ name, labels: some, cidrs }) => group(name, some, cidrs));

const anyNamespace = fc.tuple(space, labels).map(([name, some]) => namespace(name, some));

const object: Arbitrary<TestObject> = fc.oneof(
  { arbitrary: anyPod, weight: 8 },
  { arbitrary: policy, weight: 8 },
  { arbitrary: anyGroup, weight: 2 },
  { arbitrary: anyNamespace, weight: 2 },
  { arbitrary: anyNode, weight: 1 },
  { arbitrary: thirdNode, weight: 1 },
);

const removal = fc.constantFrom(
  ...POD_NAMES.map((key) => ({ kind: 'Pod' as const, key })),
  ...KINDS.flatMap(({ kind, names }) => names.map((key) => ({ kind, key }))),
  ...['g', 'h', 'i'].map((key) => ({ kind: 'CIDRGroup' as const, key })),
  ...['blue', 'red'].map((key) => ({ kind: 'Namespace' as const, key })),
  ...[HERE, THERE, 'node-c'].map((key) => ({ kind: 'Node' as const, key })),
);

export const change: Arbitrary<Change> = fc.oneof(
  { arbitrary: object.map((upsert) => ({ upsert })), weight: 4 },
  { arbitrary: removal.map((remove) => ({ remove })), weight: 1 },
);

function several<T>(one: Arbitrary<T>, minLength: number, maxLength: number): Arbitrary<T[]> {
  return fc.array(one, { minLength, maxLength, size: 'max' });
}

/** A cluster with most kinds of objects. */
export const cluster: Arbitrary<readonly TestObject[]> = fc
  .tuple(
    several<TestObject>(anyPod, 6, 14),
    several<TestObject>(policy, 3, 10),
    several<TestObject>(anyGroup, 0, 3),
    several<TestObject>(anyNamespace, 0, 2),
    several<TestObject>(anyNode, 0, 2),
    several<TestObject>(thirdNode, 0, 1),
  )
  .map((parts) => parts.flat());

const OTHERS = ['203.0.113.5', '203.0.113.200', '192.168.0.1', '192.168.0.9', '198.51.100.1'];
const ADDRESSES = [
  [...POD_NUMBERS.map((number) => `10.0.0.${number}`), ...OTHERS],
  [...POD_NUMBERS.map((number) => `fd00::${number}`), '2001:db8::5', 'fd00:1::2', '2001:db8:1::1'],
] as const;

/** Connections from pods to all addresses, and from all addresses to pods. */
export const FLOWS: readonly Flow[] = ADDRESSES.flatMap((addresses) =>
  addresses.flatMap((from, source) =>
    addresses.flatMap((to, target) =>
      source >= POD_NUMBERS.length && target >= POD_NUMBERS.length
        ? []
        : [
            { from, to, port: 80, protocol: 'TCP' as const },
            { from, to, port: 8080, protocol: 'TCP' as const },
            { from, to, port: 53, protocol: 'UDP' as const },
            ...(source === target ? [{ from, to, port: 53, protocol: 'SCTP' as const }] : []),
            ...(source % 2 === target % 2
              ? [{ from, to, port: 0, protocol: 'ICMP' as const }]
              : []),
          ],
    ),
  ),
);
