/** Network policy objects as users write them. */
import type { Lab } from '../lab/lab.ts';
import type { Manifest, Pod } from './manifests.ts';

export interface PodFields {
  readonly namespace?: string;
  readonly labels?: Readonly<Record<string, string>>;
  readonly ports?: readonly Readonly<Record<string, unknown>>[];
  /** Without addresses, as before the pod's sandbox is ready. */
  readonly pending?: boolean;
  readonly hostNetwork?: boolean;
}

/** A pod of the lab with label `pod: <name>`, on the node given by its name. */
export function podManifest(host: Pod, fields: PodFields = {}): Manifest {
  const { namespace = 'default', labels = {}, ports = [], pending, hostNetwork } = fields;
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name: host.name,
      namespace,
      uid: `${namespace}-${host.name}`,
      creationTimestamp: '2026-01-01T00:00:00Z',
      labels: { pod: host.name, ...labels },
    },
    spec: {
      nodeName: host.name.startsWith('remote') ? 'node2' : 'node',
      hostNetwork,
      containers: [{ name: 'main', ports }],
    },
    status: pending
      ? { phase: 'Pending' }
      : { phase: 'Running', podIPs: [{ ip: host.ipv4 }, { ip: host.ipv6 }] },
  };
}

export function namespaceManifest(
  name: string,
  labels: Readonly<Record<string, string>> = {},
): Manifest {
  return {
    apiVersion: 'v1',
    kind: 'Namespace',
    metadata: { name, labels: { 'kubernetes.io/metadata.name': name, ...labels } },
  };
}

/** All pods of a lab in one namespace, with that Namespace. */
export function policyPods(lab: Lab): Manifest[] {
  const pods = [...lab.pods, ...lab.remotePods].map((host) => podManifest(host));
  return [namespaceManifest('default'), ...pods];
}

export function networkPolicy(
  name: string,
  spec: Readonly<Record<string, unknown>>,
  namespace = 'default',
): Manifest {
  return {
    apiVersion: 'networking.k8s.io/v1',
    kind: 'NetworkPolicy',
    metadata: { name, namespace, uid: `${namespace}-${name}` },
    spec,
  };
}

/** A policy of a cluster-scoped kind. */
export function adminPolicy(
  kind: 'AdminNetworkPolicy' | 'BaselineAdminNetworkPolicy' | 'ClusterNetworkPolicy',
  name: string,
  spec: Readonly<Record<string, unknown>>,
): Manifest {
  const version = kind === 'ClusterNetworkPolicy' ? 'v1alpha2' : 'v1alpha1';
  return {
    apiVersion: `policy.networking.k8s.io/${version}`,
    kind,
    metadata: { name, uid: name },
    spec,
  };
}

export function cidrGroup(name: string, cidrs: readonly string[]): Manifest {
  return {
    apiVersion: 'policy.networking.k8s.io/v1alpha1',
    kind: 'CIDRGroup',
    metadata: { name, labels: { name } },
    spec: { cidrs },
  };
}
