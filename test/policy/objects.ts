/** Builds policy objects with default values for all fields. */
import type { Node } from '../../api/objects.ts';
import type {
  CidrGroup,
  LabelSelector,
  Labels,
  Namespace,
  Pod,
  Policy,
  PolicyObject,
  PolicyPeer,
  PolicyRule,
  PortMatch,
  SelectorRequirement,
} from '../../api/policy-objects.ts';

import { pod as podFixture } from '../fixtures.ts';

export type TestObject = PolicyObject | Node;

export const HERE = 'node-a';
export const THERE = 'node-b';

export function pod(name: string, fields: Partial<Pod> = {}): Pod {
  return podFixture({ name, labels: { app: name }, nodeName: HERE, ...fields });
}

export function namespace(name: string, labels: Labels = {}): Namespace {
  return { kind: 'Namespace', key: name, name, labels };
}

export function group(name: string, labels: Labels, cidrs: readonly string[]): CidrGroup {
  return { kind: 'CIDRGroup', key: name, name, labels, cidrs };
}

export function node(name: string, addresses: readonly string[], labels: Labels = {}): Node {
  return {
    kind: 'Node',
    key: name,
    name,
    zone: undefined,
    podCIDRs: [],
    addresses,
    deleting: false,
    taints: [],
    labels,
  };
}

/** `matchLabels`. */
export function labelled(labels: Labels): LabelSelector {
  return Object.entries(labels).map(([key, value]) => requirement(key, 'In', value));
}

export function requirement(
  key: string,
  operator: SelectorRequirement['operator'],
  ...values: string[]
): SelectorRequirement {
  return { key, operator, values };
}

export function peerPods(
  pods: LabelSelector,
  namespaces: string | LabelSelector = 'default',
): PolicyPeer {
  return { kind: 'pods', selection: { namespaces, pods } };
}

export function network(cidr: string, ...except: string[]): PolicyPeer {
  return { kind: 'network', cidr, except };
}

export function tcp(first: number, last = first): PortMatch {
  return { protocol: 'TCP', first, last };
}

export function rule(fields: Partial<PolicyRule> = {}): PolicyRule {
  return {
    path: 'spec.rules[0]',
    name: '',
    action: 'Allow',
    peers: undefined,
    ports: undefined,
    ...fields,
  };
}

type PolicyFields = Partial<Omit<Policy, 'kind' | 'tier'>>;

/** Selects all pods of the namespace `default` unless given otherwise. */
export function networkPolicy(name: string, fields: PolicyFields = {}): Policy {
  const space = fields.namespace ?? 'default';
  return policy('NetworkPolicy', 'NetworkPolicy', name, {
    key: `${space}/${name}`,
    namespace: space,
    subject: { namespaces: space, pods: [] },
    ...fields,
  });
}

export function adminPolicy(name: string, fields: PolicyFields = {}): Policy {
  return policy('AdminNetworkPolicy', 'Admin', name, fields);
}

export function baselinePolicy(fields: PolicyFields = {}): Policy {
  return policy('BaselineAdminNetworkPolicy', 'Baseline', 'default', fields);
}

export function clusterPolicy(
  name: string,
  tier: 'Admin' | 'Baseline',
  fields: PolicyFields = {},
): Policy {
  return policy('ClusterNetworkPolicy', tier, name, fields);
}

/** Selects all pods of the cluster unless given otherwise. */
function policy(
  kind: Policy['kind'],
  tier: Policy['tier'],
  name: string,
  fields: PolicyFields,
): Policy {
  const path = (direction: 'ingress' | 'egress') =>
    fields[direction]?.map((each, at) => ({ ...each, path: `spec.${direction}[${at}]` }));
  return {
    kind,
    key: name,
    namespace: '',
    name,
    uid: '',
    tier,
    priority: 0,
    subject: { namespaces: [], pods: [] },
    faults: [],
    ...fields,
    ingress: path('ingress'),
    egress: path('egress'),
  };
}
