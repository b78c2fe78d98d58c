/**
 * api/ turns Kubernetes objects into slim, immutable, already validated values: these.
 * Addresses are canonical text (as `canonicalAddress` of `addresses.ts` gives it), ports numbers.
 */
import type { Labels, PolicyKind, PolicyObject } from './policy-objects.ts';

export type IpFamily = 'IPv4' | 'IPv6';
export const IP_FAMILIES: readonly IpFamily[] = ['IPv4', 'IPv6'];

export type Protocol = 'TCP' | 'UDP' | 'SCTP';
export const PROTOCOLS: readonly Protocol[] = ['TCP', 'UDP', 'SCTP'];

export type ServingKind = 'Service' | 'EndpointSlice' | 'Node';
export type Kind = ServingKind | 'Pod' | 'Namespace' | 'CIDRGroup' | PolicyKind;
/** What a node serves Services from. */
export const SERVING_KINDS: readonly ServingKind[] = ['Service', 'EndpointSlice', 'Node'];
/** What network policy reads besides Nodes. */
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
  'Namespace',
  'CIDRGroup',
  'AdminNetworkPolicy',
  'BaselineAdminNetworkPolicy',
  'ClusterNetworkPolicy',
]);

/** Whether objects of this kind are in a namespace. */
export function isNamespaced(kind: Kind): boolean {
  return !CLUSTER_KINDS.has(kind);
}

/** `namespace/name`; the bare name of what is in no namespace. */
export type ObjectKey = string;

export type ServiceType = 'ClusterIP' | 'NodePort' | 'LoadBalancer' | 'ExternalName';
export type TrafficPolicy = 'Cluster' | 'Local';
export type TrafficDistribution = 'PreferClose' | 'PreferSameZone' | 'PreferSameNode';

export interface ServicePort {
  /** Empty for the unnamed port of a one-port Service. */
  readonly name: string;
  readonly protocol: Protocol;
  readonly port: number;
  /** 0 when none is allocated. */
  readonly nodePort: number;
}

export interface LoadBalancerIngress {
  readonly ip: string;
  /** Proxy: the load balancer rewrites the destination, so nodes must not capture the address. */
  readonly ipMode: 'VIP' | 'Proxy';
}

export interface Service {
  readonly kind: 'Service';
  readonly key: ObjectKey;
  readonly namespace: string;
  readonly name: string;
  /** Tells it from others that had or will have its name; empty when the manifest has none. */
  readonly uid: string;
  /** RFC 3339 as the API server writes it; empty when the manifest has none. */
  readonly creationTimestamp: string;
  readonly type: ServiceType;
  /** Canonical addresses, at most one a family; empty for headless and ExternalName Services. */
  readonly clusterIPs: readonly string[];
  /** `clusterIP: None`. */
  readonly headless: boolean;
  /** Of a Service of the type ExternalName, as written; undefined for others. */
  readonly externalName: string | undefined;
  /** Of a headless Service: DNS tells of endpoints that are not ready too. */
  readonly publishNotReadyAddresses: boolean;
  readonly ports: readonly ServicePort[];
  /** `spec.allPorts` as written (KEP-2610). */
  readonly allPorts: boolean | undefined;
  /** Annotation `portwide.dev/ports` as written. */
  readonly portsAnnotation: string | undefined;
  /** Fields of other annotations under `portwide.dev/`, which mean nothing: mistakes. Missing where there are none. */
  readonly unknownAnnotations?: readonly string[];
  readonly externalIPs: readonly string[];
  readonly loadBalancerIngress: readonly LoadBalancerIngress[];
  /** Canonical CIDRs. */
  readonly loadBalancerSourceRanges: readonly string[];
  readonly externalTrafficPolicy: TrafficPolicy;
  readonly internalTrafficPolicy: TrafficPolicy;
  readonly healthCheckNodePort: number;
  /** Seconds a client stays on its endpoint (`sessionAffinity: ClientIP`); 0 for none. */
  readonly affinitySeconds: number;
  readonly trafficDistribution: TrafficDistribution | undefined;
  /** Label `service.kubernetes.io/service-proxy-name` is present: another proxy serves it. */
  readonly otherProxy: boolean;
  /** Label `service.kubernetes.io/headless` is present. */
  readonly headlessLabel: boolean;
}

export interface SlicePort {
  readonly name: string;
  readonly protocol: Protocol;
  /** undefined: null in the API, "all ports". */
  readonly port: number | undefined;
}

export interface SliceEndpoint {
  /** Canonical; only the first address of an endpoint is used, as kube-proxy does. */
  readonly address: string;
  readonly ready: boolean;
  readonly serving: boolean;
  readonly terminating: boolean;
  readonly nodeName: string | undefined;
  readonly zone: string | undefined;
  /** A DNS label that the endpoint has under a headless Service's name. */
  readonly hostname: string | undefined;
  /** undefined: the endpoint carries no hints of that kind. */
  readonly hintedZones: readonly string[] | undefined;
  readonly hintedNodes: readonly string[] | undefined;
}

export interface EndpointSlice {
  readonly kind: 'EndpointSlice';
  readonly key: ObjectKey;
  readonly namespace: string;
  readonly name: string;
  /** Key of the Service it belongs to (label `kubernetes.io/service-name`). */
  readonly serviceKey: ObjectKey;
  /** Label `service.kubernetes.io/headless` is present: no node serves it, DNS does. */
  readonly headlessLabel: boolean;
  readonly family: IpFamily;
  /**
   * When what made the endpoints change happened, in milliseconds since 1970, as the EndpointSlice
   * controller tells it; undefined when it does not.
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
  /** InternalIP addresses first, then ExternalIP, in the order of the status. */
  readonly addresses: readonly string[];
  /** `metadata.deletionTimestamp` is set. */
  readonly deleting: boolean;
  /** Keys of the taints. */
  readonly taints: readonly string[];
}

export type ServingObject = Service | EndpointSlice | Node;
export type ApiObject = ServingObject | PolicyObject;
