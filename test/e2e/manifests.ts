/** Kubernetes objects as users write them, for an agent under test. */
import type { Host } from '../lab/lab.ts';

export type Manifest = Readonly<Record<string, unknown>>;

/** Fields of a Service besides its name. `clusterIPs` determines the families. */
export interface ServiceFields {
  /** `default` by default. */
  readonly namespace?: string;
  readonly annotations?: Readonly<Record<string, string>>;
  readonly labels?: Readonly<Record<string, string>>;
  readonly created?: string;
  readonly ingress?: readonly { readonly ip: string; readonly ipMode?: string }[];
  readonly spec: Readonly<Record<string, unknown>> & { readonly clusterIPs: readonly string[] };
}

export const ALL_PORTS = { 'portwide.dev/ports': 'all' };
export const PLACEHOLDER = [{ port: 1, protocol: 'TCP' }];

export function serviceManifest(name: string, fields: ServiceFields): Manifest {
  const { namespace = 'default', annotations, labels, created, ingress, spec } = fields;
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: {
      name,
      namespace,
      annotations,
      labels,
      ...(created === undefined ? {} : { creationTimestamp: created }),
    },
    spec: { ports: PLACEHOLDER, clusterIP: spec.clusterIPs[0], ...spec },
    ...(ingress === undefined ? {} : { status: { loadBalancer: { ingress } } }),
  };
}

/** The fields of a pod that a slice needs. */
export type Pod = Pick<Host, 'name' | 'ipv4' | 'ipv6'>;

/** An endpoint in an EndpointSlice. */
export interface EndpointFields {
  /** Default: from the pod's name. */
  readonly nodeName?: string | undefined;
  readonly conditions?: Readonly<Record<string, boolean>>;
  readonly zone?: string;
  readonly hints?: Readonly<Record<string, unknown>>;
  readonly targetRef?: Readonly<Record<string, string>>;
  readonly hostname?: string;
}

export interface SliceFields {
  readonly name?: string;
  readonly namespace?: string;
  readonly ports?: readonly Readonly<Record<string, unknown>>[];
}

/** One EndpointSlice of a Service. The nodes of pods (`node`, `node2`) follow from their names. */
export function sliceManifest(
  service: string,
  family: 4 | 6,
  pods: readonly (Pod | readonly [Pod, EndpointFields])[],
  { name = `${service}-ipv${family}`, namespace = 'default', ports = [] }: SliceFields = {},
): Manifest {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      name,
      namespace,
      labels: { 'kubernetes.io/service-name': service },
    },
    addressType: `IPv${family}`,
    ports,
    endpoints: pods.map((entry) => {
      const [pod, fields] = 'name' in entry ? [entry, {}] : entry;
      return {
        addresses: [family === 4 ? pod.ipv4 : pod.ipv6],
        nodeName: pod.name.startsWith('remote') ? 'node2' : 'node',
        conditions: { ready: true },
        ...fields,
      };
    }),
  };
}

export interface PodFields {
  readonly namespace?: string;
  readonly hostNetwork?: boolean;
  readonly phase?: string;
}

/** A Pod with addresses, at most one of each family. */
export function addressedPod(
  name: string,
  addresses: readonly string[],
  { namespace = 'default', hostNetwork = false, phase = 'Running' }: PodFields = {},
): Manifest {
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, namespace },
    spec: { hostNetwork, containers: [{ name: 'server', image: 'server' }] },
    status: { phase, podIPs: addresses.map((ip) => ({ ip })) },
  };
}

interface SliceManifest {
  readonly kind: 'EndpointSlice';
  readonly metadata: { readonly namespace?: string };
  readonly endpoints: readonly { readonly addresses: readonly string[] }[];
}

/** The objects, and a Pod for each endpoint, without which an endpoint owns no ports. */
export function withPods(objects: readonly Manifest[]): Manifest[] {
  const pods = new Map<string, Manifest>();
  for (const object of objects as readonly (Manifest | SliceManifest)[]) {
    if (object.kind !== 'EndpointSlice') continue;
    const { metadata, endpoints } = object as SliceManifest;
    const { namespace = 'default' } = metadata;
    for (const { addresses } of endpoints) {
      const name = `pod-${addresses[0]?.replaceAll(/[.:]+/g, '-')}`;
      pods.set(`${namespace}/${name}`, addressedPod(name, addresses, { namespace }));
    }
  }
  return [...objects, ...pods.values()];
}

/** The Node that the agent runs on. */
export function nodeManifest(
  addresses: readonly string[],
  { taints = [] }: { readonly taints?: readonly { readonly key: string }[] } = {},
): Manifest {
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'node', labels: { 'topology.kubernetes.io/zone': 'zone-1' } },
    spec: { podCIDRs: ['10.244.1.0/24', 'fd00:10:244:1::/64'], taints },
    status: { addresses: addresses.map((address) => ({ type: 'InternalIP', address })) },
  };
}

/** The address of an endpoint in a `largeSlice`. */
export function largeSliceAddress(index: number, endpoint: number): string {
  return `10.${index >> 8}.${index & 255}.${endpoint}`;
}

/** One of many EndpointSlices of a Service, whose endpoints are no hosts of a lab. @param size Number of endpoints. */
export function largeSlice(service: string, index: number, size: number, port: number): Manifest {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      name: `${service}-${index}`,
      namespace: 'default',
      labels: { 'kubernetes.io/service-name': service },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', port }],
    endpoints: Array.from({ length: size }, (_, endpoint) => ({
      addresses: [largeSliceAddress(index, endpoint)],
    })),
  };
}
