/** The cluster of `cluster.ts` as API objects, including fields that no proxy reads. */
import type { Manifest } from '../test/e2e/manifests.ts';
import { endpointAddresses, SERVICE_PORT, serviceName, TARGET_PORT, vip } from './cluster.ts';

const TIME = '2026-01-01T00:00:00Z';

/**
 * Service number `index` and its EndpointSlice.
 * @param headless if set, the Service is headless and has this name
 */
export function apiObjects(index: number, headless?: string): [Manifest, Manifest] {
  const name = headless ?? serviceName(index);
  const clusterIP = headless === undefined ? vip(index) : 'None';
  const labels = { 'app.kubernetes.io/name': name, 'app.kubernetes.io/managed-by': 'Helm' };
  return [
    {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: {
        name,
        namespace: 'default',
        uid: uid(index),
        creationTimestamp: TIME,
        labels,
        annotations: { 'meta.helm.sh/release-name': name },
        managedFields: managedFields(['spec', 'ports', 'selector', 'sessionAffinity', 'type']),
      },
      spec: {
        clusterIP,
        clusterIPs: [clusterIP],
        internalTrafficPolicy: 'Cluster',
        ipFamilies: ['IPv4'],
        ipFamilyPolicy: 'SingleStack',
        ports: [{ name: 'http', protocol: 'TCP', port: SERVICE_PORT, targetPort: TARGET_PORT }],
        selector: labels,
        sessionAffinity: 'None',
        type: 'ClusterIP',
      },
      status: { loadBalancer: {} },
    },
    {
      apiVersion: 'discovery.k8s.io/v1',
      kind: 'EndpointSlice',
      metadata: {
        name: `${name}-x7k2p`,
        generateName: `${name}-`,
        namespace: 'default',
        uid: uid(index + 100_000),
        creationTimestamp: TIME,
        generation: 4,
        labels: {
          ...labels,
          'endpointslice.kubernetes.io/managed-by': 'endpointslice-controller.k8s.io',
          'kubernetes.io/service-name': name,
        },
        annotations: { 'endpoints.kubernetes.io/last-change-trigger-time': TIME },
        ownerReferences: [
          {
            apiVersion: 'v1',
            kind: 'Service',
            name,
            uid: uid(index),
            controller: true,
            blockOwnerDeletion: true,
          },
        ],
        managedFields: managedFields(['addressType', 'endpoints', 'ports']),
      },
      addressType: 'IPv4',
      ports: [{ name: 'http', protocol: 'TCP', port: TARGET_PORT }],
      endpoints: apiEndpoints(index, endpointAddresses(index), name),
    },
  ];
}

/** Ready endpoints of Service number `index`, for the field `endpoints` of its EndpointSlice. */
export function apiEndpoints(
  index: number,
  addresses: readonly string[],
  name = serviceName(index),
): object[] {
  return addresses.map((address, number) => ({
    addresses: [address],
    conditions: { ready: true, serving: true, terminating: false },
    nodeName: `ip-10-0-${number}-${index % 200}.eu-central-1.compute.internal`,
    zone: `eu-central-1${'abc'[number % 3]}`,
    targetRef: {
      kind: 'Pod',
      name: `${name}-6d4cf56db6-x${number}k2p`,
      namespace: 'default',
      uid: uid(index * 10 + number),
    },
  }));
}

/** The Node that the agent runs on; no endpoint is on it. */
export function apiNode(name: string): Manifest {
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name, labels: { 'topology.kubernetes.io/zone': 'eu-central-1a' } },
    spec: {},
    status: { addresses: [{ type: 'InternalIP', address: '192.0.2.1' }] },
  };
}

function uid(number: number): string {
  return `8f14e45f-ceea-467f-a2d8-${String(number).padStart(12, '0')}`;
}

function managedFields(fields: readonly string[]): readonly object[] {
  return [
    {
      manager: 'kube-controller-manager',
      operation: 'Update',
      apiVersion: 'v1',
      time: TIME,
      fieldsType: 'FieldsV1',
      fieldsV1: {
        'f:metadata': {
          'f:labels': {
            '.': {},
            'f:app.kubernetes.io/name': {},
            'f:app.kubernetes.io/part-of': {},
          },
        },
        ...Object.fromEntries(fields.map((field) => [`f:${field}`, {}])),
      },
    },
  ];
}
