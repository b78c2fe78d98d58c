/**
 * A reference implementation of the policy APIs. It evaluates the objects directly for each
 * connection, without policy sets and lists. It is simple rather than fast, so that its correctness
 * is evident.
 */
import { cidrContains } from '../../api/addresses.ts';
import type { Node, Protocol } from '../../api/objects.ts';
import type {
  CidrGroup,
  LabelSelector,
  Labels,
  Namespace,
  Pod,
  PodSelection,
  Policy,
  PolicyPeer,
  PolicyRule,
  PortMatch,
} from '../../api/policy-objects.ts';
import type { TestObject } from './objects.ts';

/** Objects and settings of a cluster. */
export interface ClusterState {
  readonly objects: readonly TestObject[];
  /** FQDN cache: addresses by domain name in lower case without the final dot. */
  readonly names?: ReadonlyMap<string, readonly string[]>;
  /** Nodes that enforce policy for their pods; default: all. */
  readonly enforcing?: readonly string[];
}

/** The first packet of a connection, after DNAT. */
export interface Flow {
  readonly from: string;
  readonly to: string;
  /** Destination port; ignored for ICMP. */
  readonly port: number;
  readonly protocol: Protocol | 'ICMP';
}

export type Verdict = 'allow' | 'deny';

export function verdict(cluster: ClusterState, flow: Flow): Verdict {
  const source = podAt(cluster, flow.from);
  const target = podAt(cluster, flow.to);
  if (source !== undefined && flow.from === flow.to && enforces(cluster, source)) return 'allow';
  if (source !== undefined && enforces(cluster, source)) {
    if (evaluate(cluster, 'egress', source, flow.to, flow) === 'deny') return 'deny';
  }
  if (target !== undefined && enforces(cluster, target) && !isNodeOf(cluster, target, flow.from)) {
    if (evaluate(cluster, 'ingress', target, flow.from, flow) === 'deny') return 'deny';
  }
  return 'allow';
}

function evaluate(
  cluster: ClusterState,
  direction: 'ingress' | 'egress',
  subject: Pod,
  other: string,
  flow: Flow,
): Verdict {
  const policies = kind<Policy>(cluster, [
    'NetworkPolicy',
    'AdminNetworkPolicy',
    'BaselineAdminNetworkPolicy',
    'ClusterNetworkPolicy',
  ]).filter(
    (policy) => policy[direction] !== undefined && isSelected(cluster, policy.subject, subject),
  );
  const decide = (rules: readonly PolicyRule[]) =>
    rules.find((rule) => matchesPeer(cluster, rule, other) && matchesPort(cluster, rule, flow))
      ?.action;
  const rulesOf = (tier: Policy['tier']) =>
    policies
      .filter((policy) => policy.tier === tier)
      .sort(goesBefore)
      .flatMap((policy) => policy[direction] ?? []);

  const admin = decide(rulesOf('Admin'));
  if (admin === 'Allow') return 'allow';
  if (admin === 'Deny') return 'deny';
  if (policies.some((policy) => policy.tier === 'NetworkPolicy')) {
    return decide(rulesOf('NetworkPolicy')) === 'Allow' ? 'allow' : 'deny';
  }
  return decide(rulesOf('Baseline')) === 'Deny' ? 'deny' : 'allow';
}

/** Order by priority (a BaselineAdminNetworkPolicy first), then name, then kind. */
function goesBefore(a: Policy, b: Policy): number {
  const rank = (policy: Policy) =>
    policy.kind === 'BaselineAdminNetworkPolicy' ? -1 : policy.priority;
  if (rank(a) !== rank(b)) return rank(a) - rank(b);
  if (a.name !== b.name) return a.name < b.name ? -1 : 1;
  return a.kind < b.kind ? -1 : 1;
}

function matchesPeer(cluster: ClusterState, { peers }: PolicyRule, other: string): boolean {
  return peers === undefined || peers.some((peer) => isPeer(cluster, peer, other));
}

function isPeer(cluster: ClusterState, peer: PolicyPeer, other: string): boolean {
  switch (peer.kind) {
    case 'pods': {
      const pod = podAt(cluster, other);
      return pod !== undefined && isSelected(cluster, peer.selection, pod);
    }
    case 'network':
      return (
        cidrContains(peer.cidr, other) && !peer.except.some((cidr) => cidrContains(cidr, other))
      );
    case 'cidrGroups':
      return kind<CidrGroup>(cluster, ['CIDRGroup']).some(
        ({ labels, cidrs }) =>
          matchesLabels(peer.selector, labels) && cidrs.some((cidr) => cidrContains(cidr, other)),
      );
    case 'nodes':
      return kind<Node>(cluster, ['Node']).some(
        ({ labels, addresses }) =>
          matchesLabels(peer.selector, labels) && addresses.includes(other),
      );
    case 'domainName':
      return [...(cluster.names ?? [])].some(
        ([name, addresses]) => isNamedBy(peer.pattern, name) && addresses.includes(other),
      );
  }
}

function matchesPort(cluster: ClusterState, { ports }: PolicyRule, flow: Flow): boolean {
  if (ports === undefined) return true;
  if (flow.protocol === 'ICMP') return false;
  return ports.some((match) => isPort(cluster, match, flow));
}

function isPort(cluster: ClusterState, match: PortMatch, { to, port, protocol }: Flow): boolean {
  if ('first' in match) {
    return match.protocol === protocol && match.first <= port && port <= match.last;
  }
  const named = podAt(cluster, to)?.namedPorts ?? [];
  return named.some(
    (each) =>
      each.name === match.name &&
      each.port === port &&
      each.protocol === protocol &&
      (match.protocol === undefined || match.protocol === protocol),
  );
}

function isNamedBy(pattern: string, name: string): boolean {
  if (!pattern.startsWith('*.')) return pattern === name;
  const labels = name.split('.');
  const tail = pattern.split('.').slice(1);
  return labels.length > tail.length && labels.slice(-tail.length).join('.') === tail.join('.');
}

/** The pod with an address; of several, the one created last. */
function podAt(cluster: ClusterState, address: string): Pod | undefined {
  let holder: Pod | undefined;
  for (const pod of kind<Pod>(cluster, ['Pod'])) {
    if (pod.hostNetwork || pod.finished || !pod.addresses.includes(address)) continue;
    if (holder === undefined || isYounger(pod, holder)) holder = pod;
  }
  return holder;
}

function isYounger(a: Pod, b: Pod): boolean {
  if (a.creationTimestamp !== b.creationTimestamp) {
    if (a.creationTimestamp === '') return true;
    if (b.creationTimestamp === '') return false;
    return a.creationTimestamp > b.creationTimestamp;
  }
  return a.key > b.key;
}

function isSelected(cluster: ClusterState, { namespaces, pods }: PodSelection, pod: Pod): boolean {
  if (typeof namespaces === 'string') {
    if (namespaces !== pod.namespace) return false;
  } else if (!matchesLabels(namespaces, namespaceLabels(cluster, pod.namespace))) return false;
  return matchesLabels(pods, pod.labels);
}

/** Labels of a namespace, including `kubernetes.io/metadata.name`. */
function namespaceLabels(cluster: ClusterState, name: string): Labels {
  const object = kind<Namespace>(cluster, ['Namespace']).find((each) => each.name === name);
  return { ...object?.labels, 'kubernetes.io/metadata.name': name };
}

function matchesLabels(selector: LabelSelector, labels: Labels): boolean {
  const given = new Map(Object.entries(labels));
  for (const { key, operator, values } of selector) {
    const value = given.get(key);
    if (operator === 'Exists' && value === undefined) return false;
    if (operator === 'DoesNotExist' && value !== undefined) return false;
    if (operator === 'In' && (value === undefined || !values.includes(value))) return false;
    if (operator === 'NotIn' && value !== undefined && values.includes(value)) return false;
  }
  return true;
}

function enforces({ enforcing }: ClusterState, { nodeName }: Pod): boolean {
  return enforcing === undefined || (nodeName !== undefined && enforcing.includes(nodeName));
}

function isNodeOf(cluster: ClusterState, { nodeName }: Pod, address: string): boolean {
  const node = kind<Node>(cluster, ['Node']).find(({ name }) => name === nodeName);
  return node?.addresses.includes(address) === true;
}

function kind<T extends TestObject>({ objects }: ClusterState, kinds: readonly T['kind'][]): T[] {
  return objects.filter((object): object is T => kinds.includes(object.kind));
}
