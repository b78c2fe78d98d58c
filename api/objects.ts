/**
 * api/ converts Kubernetes objects into small, immutable, validated values; this file defines their
 * types. Addresses are canonical text (see `canonicalAddress` in `addresses.ts`).
 */
import type { Labels, PolicyKind, PolicyObject } from './policy-objects.ts';

export type IpFamily = 'IPv4' | 'IPv6';
export const IP_FAMILIES: readonly IpFamily[] = ['IPv4', 'IPv6'];

export type Protocol = 'TCP' | 'UDP' | 'SCTP';
export const PROTOCOLS: readonly Protocol[] = ['TCP', 'UDP', 'SCTP'];

export type ServingKind = 'Service' | 'EndpointSlice' | 'Node';
export type Kind = ServingKind | 'ServiceCIDR' | 'Pod' | 'Namespace' | 'CIDRGroup' | PolicyKind;
/** Kinds needed to serve Services. */
export const SERVING_KINDS: readonly ServingKind[] = ['Service', 'EndpointSlice', 'Node'];
/** Kinds needed for network policy, in addition to Node. */
export const POLICY_KINDS: readonly PolicyObject['kind'][] = [
  'Pod',
  'Namespace',
  'CIDRGroup',
  'NetworkPolicy',
  'AdminNetworkPolicy',
  'BaselineAdminNetworkPolicy',
  'ClusterNetworkPolicy',
];
const CLUSTER_KINDS: ReadonlySet<Kind> = new Set<Kind>([
  'Node',
  'ServiceCIDR',
  'Namespace',
  'CIDRGroup',
  'AdminNetworkPolicy',
  'BaselineAdminNetworkPolicy',
  'ClusterNetworkPolicy',
]);

/** Whether objects of this kind have a namespace. */
export function isNamespaced(kind: Kind): boolean {
  return !CLUSTER_KINDS.has(kind);
}

/** `namespace/name`, or `name` for a cluster-scoped object. */
export type ObjectKey = string;

/** The namespace in the key of a namespaced object. */
export function namespaceOf(key: ObjectKey): string {
  return key.slice(0, key.indexOf('/'));
}

/** Whether two namespaced objects are in one namespace. */
export function isSameNamespace(a: ObjectKey, b: ObjectKey): boolean {
  return namespaceOf(a) === namespaceOf(b);
}

export type ServiceType = 'ClusterIP' | 'NodePort' | 'LoadBalancer' | 'ExternalName';
export type TrafficPolicy = 'Cluster' | 'Local';

export interface ServicePort {
  /** Empty for an unnamed port, which is valid only when the Service has a single port. */
  readonly name: string;
  readonly protocol: Protocol;
  readonly port: number;
  /** 0 when no node port is allocated. */
  readonly nodePort: number;
}

export interface LoadBalancerIngress {
  readonly ip: string;
  /** Proxy: the load balancer rewrites the destination, so nodes must not capture the address. */
  readonly ipMode: 'VIP' | 'Proxy';
}

/** Addresses of a Service that could not be read, or not as written. The others are served. */
export interface AddressProblems {
  /** As `field: message`. */
  readonly warnings: readonly string[];
  readonly hasUnreadableExternalIP: boolean;
  /** Sources that the range would let in are unknown, and none are let in for it. */
  readonly hasUnreadableSourceRange: boolean;
}

export interface Service {
  readonly kind: 'Service';
  readonly key: ObjectKey;
  readonly namespace: string;
  readonly name: string;
  /**
   * Distinguishes this object from earlier or later objects of the same name; empty when the
   * manifest has no uid.
   */
  readonly uid: string;
  /** RFC 3339 time as the API server writes it; empty when the manifest has no time. */
  readonly creationTimestamp: string;
  readonly type: ServiceType;
  /**
   * Canonical addresses, at most one per IP family; empty for headless and ExternalName Services.
   */
  readonly clusterIPs: readonly string[];
  /** `clusterIP: None`. */
  readonly headless: boolean;
  /** `spec.externalName` as written; undefined unless the type is ExternalName. */
  readonly externalName: string | undefined;
  /** Whether DNS also returns endpoints that are not ready, for headless Services. */
  readonly publishNotReadyAddresses: boolean;
  readonly ports: readonly ServicePort[];
  /** `spec.allPorts` as written (KEP-2610). */
  readonly allPorts: boolean | undefined;
  /** Annotation `portwide.dev/ports` as written. */
  readonly portsAnnotation: string | undefined;
  /** Annotation `portwide.dev/owned-ports` as written; absent when the Service has none. */
  readonly ownedPortsAnnotation?: string;
  /** Annotation `portwide.dev/ports-per-pod` as written; absent when the Service has none. */
  readonly portsPerPodAnnotation?: string;
  /** Annotation `portwide.dev/load-balancing` as written; absent when the Service has none. */
  readonly loadBalancingAnnotation?: string;
  /** `spec.selector`, only with annotation `portwide.dev/owned-ports`; absent if endpoints are managed by hand. */
  readonly ownersSelector?: Labels;
  /**
   * Paths of unknown annotations under `portwide.dev/`, probably misspelled. Absent when there are
   * none.
   */
  readonly unknownAnnotations?: readonly string[];
  /** Absent if all addresses could be read. */
  readonly addressProblems?: AddressProblems;
  readonly externalIPs: readonly string[];
  readonly loadBalancerIngress: readonly LoadBalancerIngress[];
  /** Canonical CIDRs. */
  readonly loadBalancerSourceRanges: readonly string[];
  readonly externalTrafficPolicy: TrafficPolicy;
  readonly internalTrafficPolicy: TrafficPolicy;
  readonly healthCheckNodePort: number;
  /**
   * Session affinity timeout in seconds (`sessionAffinity: ClientIP`); 0 without session affinity.
   */
  readonly affinitySeconds: number;
  /**
   * Whether label `service.kubernetes.io/service-proxy-name` is set: another proxy serves this
   * Service.
   */
  readonly otherProxy: boolean;
  /** Label `service.kubernetes.io/headless` is set. */
  readonly headlessLabel: boolean;
}

export interface SlicePort {
  readonly name: string;
  readonly protocol: Protocol;
  /** undefined is null in the API and means "all ports". */
  readonly port: number | undefined;
}

export interface SliceEndpoint {
  /** Canonical. Only the first address of an endpoint is used, as in kube-proxy. */
  readonly address: string;
  readonly ready: boolean;
  readonly serving: boolean;
  readonly terminating: boolean;
  readonly nodeName: string | undefined;
  readonly zone: string | undefined;
  /** The endpoint's DNS label below the name of a headless Service. */
  readonly hostname: string | undefined;
  /**
   * The number behind the last hyphen of the pod's name, or else of the hostname, as StatefulSets give
   * it; absent when neither ends in a number.
   */
  readonly ordinal?: number;
  /** The name with the ordinal up to that number, such as `media-`: the successor of a pod has the same. Set with `ordinal`. */
  readonly ordinalPrefix?: string;
  /** Zones from the endpoint's hints; undefined when the endpoint has no zone hints. */
  readonly hintedZones: readonly string[] | undefined;
  readonly hintedNodes: readonly string[] | undefined;
}

export interface EndpointSlice {
  readonly kind: 'EndpointSlice';
  readonly key: ObjectKey;
  readonly namespace: string;
  readonly name: string;
  /** Key of the owning Service (label `kubernetes.io/service-name`). */
  readonly serviceKey: ObjectKey;
  /**
   * Whether label `service.kubernetes.io/headless` is set: DNS uses the slice, the proxy ignores
   * it.
   */
  readonly headlessLabel: boolean;
  readonly family: IpFamily;
  /**
   * Time of the change that caused this version of the endpoints, in milliseconds since 1970. Set
   * by the EndpointSlice controller; undefined when its annotation is missing or unreadable.
   */
  readonly triggerTime: number | undefined;
  readonly ports: readonly SlicePort[];
  readonly endpoints: readonly SliceEndpoint[];
}

export interface Node {
  readonly kind: 'Node';
  readonly key: ObjectKey;
  readonly name: string;
  readonly labels: Labels;
  readonly zone: string | undefined;
  readonly podCIDRs: readonly string[];
  /** InternalIP addresses, then ExternalIP addresses, each in the order of the status. */
  readonly addresses: readonly string[];
  /** `metadata.deletionTimestamp` is set. */
  readonly deleting: boolean;
  /** Keys of the taints. */
  readonly taints: readonly string[];
}

/** A range of cluster IPs (KEP-1880). */
export interface ServiceCidr {
  readonly kind: 'ServiceCIDR';
  readonly key: ObjectKey;
  readonly name: string;
  /** Empty if the object has none. */
  readonly uid: string;
  /** Canonical, at most one per IP family. */
  readonly cidrs: readonly string[];
}

export type ServingObject = Service | EndpointSlice | Node;
export type ApiObject = ServingObject | ServiceCidr | PolicyObject;
