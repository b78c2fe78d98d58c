/**
 * Random clusters on the hosts of a lab: labels of pods and namespaces, CIDRGroups, and policies in
 * all forms of their APIs except domain names. There are few labels and ports, so that policies
 * overlap.
 */
import type {
  CidrGroup,
  LabelSelector,
  Labels,
  NamedPort,
  Pod,
  PodSelection,
  Policy,
  PolicyPeer,
  PolicyRule,
  PortMatch,
  SelectorRequirement,
} from '../../../api/policy-objects.ts';
import { group, namespace, node, pod, type TestObject } from '../../policy/objects.ts';
import type { Random } from '../../random.ts';

/** Placement of a pod of the lab. */
export interface PodPlacement {
  readonly name: string;
  readonly namespace: string;
  readonly nodeName: 'node' | 'node2';
  readonly addresses: readonly string[];
}

/** Minimum and maximum number of policies of each kind. */
export interface PolicyCounts {
  readonly NetworkPolicy: readonly [number, number];
  readonly AdminNetworkPolicy: readonly [number, number];
  readonly BaselineAdminNetworkPolicy: readonly [number, number];
  readonly ClusterNetworkPolicy: readonly [number, number];
}

const SPACES = ['blue', 'red', 'green'] as const;

/** Networks around the lab's addresses (topology.ts). */
const CIDRS = [
  '0.0.0.0/0',
  '10.244.0.0/16',
  '10.244.1.0/24',
  '10.244.1.8/29',
  '10.244.1.12/30',
  '10.244.1.12/31',
  '10.244.1.11/32',
  '10.244.2.0/24',
  '192.168.77.0/24',
  '192.168.77.10/31',
  '192.168.77.100/32',
  '::/0',
  'fd00:10:244::/48',
  'fd00:10:244:1::/64',
  'fd00:10:244:1::8/125',
  'fd00:10:244:1::12/127',
  'fd00:10:244:1::11/128',
  'fd00:10:244:2::/64',
  'fd00:77::/64',
  'fd00:77::10/127',
  'fd00:77::100/128',
] as const;

/** Exceptions within a network. */
const EXCEPTS: ReadonlyMap<string, readonly string[]> = new Map([
  ['0.0.0.0/0', ['10.244.1.0/24', '10.244.1.12/31', '192.168.77.10/31', '10.244.2.0/24']],
  ['10.244.0.0/16', ['10.244.1.8/29', '10.244.1.12/30', '10.244.2.0/24', '10.244.1.12/32']],
  ['10.244.1.0/24', ['10.244.1.11/32', '10.244.1.12/31', '10.244.1.14/32']],
  ['192.168.77.0/24', ['192.168.77.100/32', '192.168.77.11/32']],
  ['::/0', ['fd00:10:244:1::/64', 'fd00:10:244:1::12/127', 'fd00:77::10/127']],
  ['fd00:10:244::/48', ['fd00:10:244:1::8/125', 'fd00:10:244:2::/64', 'fd00:10:244:1::13/128']],
  ['fd00:77::/64', ['fd00:77::100/128', 'fd00:77::11/128']],
]);

/** 79 to 81 straddle the edges of ranges, 53 occurs in UDP only. */
const RANGES = [
  [80, 80],
  [79, 80],
  [80, 81],
  [81, 8080],
  [81, 8079],
  [82, 8079],
  [1, 79],
  [1, 65535],
  [53, 53],
  [8080, 65535],
] as const;

const NAMED: readonly NamedPort[] = [
  { name: 'web', protocol: 'TCP', port: 80 },
  { name: 'web', protocol: 'TCP', port: 8080 },
  { name: 'web', protocol: 'SCTP', port: 80 },
  { name: 'dns', protocol: 'UDP', port: 53 },
  { name: 'dns', protocol: 'TCP', port: 81 },
];

/** The labelled Nodes; the agent enforces for those in `here`. */
export function nodesOf(here: readonly string[], there: readonly string[]): TestObject[] {
  return [node('node', here, { app: 'x' }), node('node2', there, { app: 'y' })];
}

/** One cluster. */
export function generate(
  random: Random,
  homes: readonly PodPlacement[],
  recipe: PolicyCounts,
): TestObject[] {
  const policies = (Object.keys(recipe) as Policy['kind'][]).flatMap((kind) =>
    random.many(...recipe[kind], (index) => policyOf(random, kind, index)),
  );
  return [
    ...SPACES.map((name) => namespace(name, labels(random))),
    ...homes.map((home) => podOf(random, home)),
    ...random.many(0, 3, (index) => groupOf(random, index)),
    ...policies,
  ];
}

function labels(random: Random): Labels {
  return {
    ...(random.chance(0.8) && { app: random.pick(['x', 'y']) }),
    ...(random.chance(0.5) && { tier: random.pick(['1', '2']) }),
  };
}

function podOf(random: Random, { name, namespace: space, ...rest }: PodPlacement): Pod {
  const namedPorts = NAMED.filter(() => random.chance(0.6));
  return pod(name, { namespace: space, labels: labels(random), namedPorts, ...rest });
}

function groupOf(random: Random, index: number): CidrGroup {
  const cidrs = new Set(random.many(1, 4, () => random.pick(CIDRS)));
  return group(`group-${index}`, labels(random), [...cidrs]);
}

function requirement(random: Random): SelectorRequirement {
  const key = random.pick(['app', 'tier']);
  const operator = random.pick(['In', 'In', 'NotIn', 'Exists', 'DoesNotExist'] as const);
  const isSet = operator === 'In' || operator === 'NotIn';
  const some = key === 'app' ? ['x', 'y'] : ['1', '2', '3'];
  const values = isSet ? some.filter(() => random.chance(0.6)) : [];
  return { key, operator, values: isSet && values.length === 0 ? some.slice(0, 1) : values };
}

function selector(random: Random): LabelSelector {
  const count = random.pick([0, 0, 1, 1, 1, 2]);
  return random.many(count, count, () => requirement(random));
}

function namespaces(random: Random): LabelSelector {
  if (random.chance(0.6)) return selector(random);
  const values = SPACES.filter(() => random.chance(0.6)).toSorted();
  const key = 'kubernetes.io/metadata.name';
  return [{ key, operator: 'In', values: values.length === 0 ? ['blue'] : values }];
}

/** @param own namespace of a NetworkPolicy, the default of its peers. */
function pods(random: Random, own: string | undefined): PodSelection {
  const isOwn = own !== undefined && random.chance(0.4);
  return { namespaces: isOwn ? own : namespaces(random), pods: selector(random) };
}

function peer(random: Random, kind: Policy['kind'], direction: 'ingress' | 'egress'): PolicyPeer {
  const isNetworkPolicy = kind === 'NetworkPolicy';
  const others = isNetworkPolicy
    ? (['network'] as const)
    : direction === 'ingress'
      ? []
      : (['network', 'cidrGroups', 'nodes'] as const);
  const form = random.chance(0.6) ? 'pods' : random.pick(['pods' as const, ...others]);
  switch (form) {
    case 'pods':
      return { kind: 'pods', selection: pods(random, isNetworkPolicy ? 'own' : undefined) };
    case 'network': {
      const cidr = random.pick(CIDRS);
      const inside = isNetworkPolicy ? (EXCEPTS.get(cidr) ?? []) : [];
      return { kind: 'network', cidr, except: inside.filter(() => random.chance(0.4)) };
    }
    default:
      return { kind: form, selector: selector(random) };
  }
}

function port(random: Random, kind: Policy['kind'], mayBeNamed: boolean): PortMatch {
  const protocol = random.pick(['TCP', 'TCP', 'TCP', 'UDP', 'UDP', 'SCTP'] as const);
  if (mayBeNamed && random.chance(0.25)) {
    const name = random.pick(['web', 'dns']);
    return { protocol: kind === 'NetworkPolicy' ? protocol : undefined, name };
  }
  const [first, last] = random.pick(RANGES);
  return { protocol, first, last };
}

function rule(
  random: Random,
  kind: Policy['kind'],
  direction: 'ingress' | 'egress',
  index: number,
): PolicyRule {
  const isNetworkPolicy = kind === 'NetworkPolicy';
  const isOpen = isNetworkPolicy && random.chance(0.15);
  const peers = isOpen ? undefined : random.many(1, 2, () => peer(random, kind, direction));
  const mayBeNamed = isNetworkPolicy || peers?.every((each) => each.kind === 'pods') === true;
  const actions =
    kind === 'BaselineAdminNetworkPolicy' ? ['Allow', 'Deny'] : ['Allow', 'Deny', 'Pass'];
  return {
    path: `spec.${direction}[${index}]`,
    name: '',
    action: isNetworkPolicy ? 'Allow' : (random.pick(actions) as PolicyRule['action']),
    peers,
    ports: random.chance(0.3) ? undefined : random.many(1, 3, () => port(random, kind, mayBeNamed)),
  };
}

function policyOf(random: Random, kind: Policy['kind'], index: number): Policy {
  const isNetworkPolicy = kind === 'NetworkPolicy';
  const own = random.pick(SPACES);
  const name = kind === 'BaselineAdminNetworkPolicy' ? 'default' : `p-${index}`;
  const rules = (direction: 'ingress' | 'egress') =>
    random
      .many(isNetworkPolicy ? 0 : 1, 3, (at) => rule(random, kind, direction, at))
      // Peers without a namespace are in the policy's namespace.
      .map((each) => ({ ...each, peers: each.peers?.map((some) => inNamespace(some, own)) }));
  const directions = random.pick([['ingress'], ['egress'], ['ingress', 'egress']]);
  const tier =
    kind === 'NetworkPolicy'
      ? 'NetworkPolicy'
      : kind === 'AdminNetworkPolicy'
        ? 'Admin'
        : kind === 'BaselineAdminNetworkPolicy'
          ? 'Baseline'
          : random.pick(['Admin', 'Admin', 'Baseline'] as const);
  return {
    kind,
    key: isNetworkPolicy ? `${own}/${name}` : name,
    namespace: isNetworkPolicy ? own : '',
    name,
    uid: '',
    tier,
    priority:
      kind === 'AdminNetworkPolicy' || kind === 'ClusterNetworkPolicy' ? random.integer(1, 4) : 0,
    subject: { namespaces: isNetworkPolicy ? own : namespaces(random), pods: selector(random) },
    ingress: directions.includes('ingress') ? rules('ingress') : undefined,
    egress: directions.includes('egress') ? rules('egress') : undefined,
    faults: [],
  };
}

function inNamespace(some: PolicyPeer, own: string): PolicyPeer {
  if (some.kind !== 'pods' || some.selection.namespaces !== 'own') return some;
  return { kind: 'pods', selection: { ...some.selection, namespaces: own } };
}
