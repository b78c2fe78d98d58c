/**
 * A cluster with network policies. Objects are derived from their numbers, so that every process
 * creates the same objects.
 */

import type {
  LabelSelector,
  Pod,
  Policy,
  PolicyObject,
  PolicyRule,
} from '../api/policy-objects.ts';

export const NAMESPACES = 50;
export const APPS = 20;
/** The node on which the policies are enforced. */
export const HERE = 'node';

export interface ClusterSize {
  readonly pods: number;
  readonly policies: number;
  /** Number of pods on this node. */
  readonly local: number;
  /** Gives each pod a unique label, as in a StatefulSet. */
  readonly unique?: boolean;
}

/** All objects, in the order in which a source delivers them. */
export function policyCluster(size: ClusterSize): PolicyObject[] {
  return [
    ...Array.from({ length: NAMESPACES }, (_, index) => teamNamespace(index)),
    ...Array.from({ length: size.pods }, (_, index) => clusterPod(index, size)),
    ...Array.from({ length: size.policies }, (_, index) => clusterPolicy(index)),
  ];
}

export function teamNamespace(index: number, team = index) {
  const name = `team-${index}`;
  return { kind: 'Namespace' as const, key: name, name, labels: { team: `team-${team}` } };
}

/**
 * Pod number `index`. The `local` pods of this node are spread over the first `pods` numbers. All other pods are on
 * another node, unless `fields` sets the node.
 */
export function clusterPod(
  index: number,
  { pods, local, unique = false }: ClusterSize,
  fields: Partial<Pod> = {},
): Pod {
  const namespace = `team-${index % NAMESPACES}`;
  const name = `pod-${index}`;
  const app = `app-${Math.floor(index / NAMESPACES) % APPS}`;
  const address = [10, index >> 16, (index >> 8) & 255, index & 255];
  const isHere = index < pods && index % Math.ceil(pods / local) === 0;
  return {
    kind: 'Pod',
    key: `${namespace}/${name}`,
    namespace,
    name,
    creationTimestamp: '2026-01-01T00:00:00Z',
    labels: unique ? { app, 'pod-name': name } : { app },
    addresses: [address.join('.'), `fd00::${index.toString(16)}`],
    nodeName: isHere ? HERE : 'there',
    hostNetwork: false,
    finished: false,
    namedPorts: [{ name: 'web', protocol: 'TCP', port: 8080 }],
    ...fields,
  };
}

const app = (index: number): LabelSelector => [
  { key: 'app', operator: 'In', values: [`app-${index % APPS}`] },
];

/** Each policy isolates one app of a namespace, in both directions, with pods and networks as peers. */
export function clusterPolicy(index: number, port = 80): Policy {
  const namespace = `team-${index % NAMESPACES}`;
  const name = `policy-${index}`;
  const number = Math.floor(index / NAMESPACES);
  const rule = (path: string, fields: Partial<PolicyRule>): PolicyRule => ({
    path,
    name: '',
    action: 'Allow',
    peers: undefined,
    ports: [{ protocol: 'TCP', first: port, last: port + (index % 3) }],
    ...fields,
  });
  const team: LabelSelector = [
    { key: 'team', operator: 'In', values: [`team-${(index * 7) % NAMESPACES}`] },
  ];
  return {
    kind: 'NetworkPolicy',
    key: `${namespace}/${name}`,
    namespace,
    name,
    uid: '',
    tier: 'NetworkPolicy',
    priority: 0,
    subject: { namespaces: namespace, pods: app(number) },
    ingress: [
      rule('spec.ingress[0]', {
        peers: [{ kind: 'pods', selection: { namespaces: namespace, pods: app(number + 1) } }],
      }),
      rule('spec.ingress[1]', {
        peers: [{ kind: 'pods', selection: { namespaces: team, pods: app(number + 2) } }],
      }),
      rule('spec.ingress[2]', { ports: [{ protocol: 'TCP', name: 'web' }] }),
    ],
    egress: [
      rule('spec.egress[0]', {
        peers: [{ kind: 'pods', selection: { namespaces: team, pods: [] } }],
      }),
      rule('spec.egress[1]', {
        peers: [{ kind: 'network', cidr: `172.${index % 32}.0.0/16`, except: [] }],
      }),
    ],
    faults: [],
  };
}
