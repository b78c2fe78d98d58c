/** Services, endpoints and Routes as this node serves them. */
import type { HashInput } from '../../api/load-balancing.ts';
import type { IpFamily, Protocol } from '../../api/objects.ts';
import type { EndpointDecision } from '../../endpoints/explain.ts';
import type { Page, Problem, Time } from './common.ts';
import type { KernelObject } from './kernel.ts';
import type { FlowEntry, TrafficRates } from './traffic.ts';

/**
 * Each Service has one state. `refused`: the agent serves no VIP of the Service; its problems say why. `partlyRefused`: it
 * serves some VIPs or ports and refuses others. `noEndpoints`: rules reject or drop packets, because no endpoint serves
 * this node. `partial`: so it is for an IP family or a port, and others have endpoints. `served`: all of it has
 * endpoints. `ignored`: not for a service proxy (headless, ExternalName, another proxy).
 */
export type ServiceState =
  | 'served'
  | 'partial'
  | 'noEndpoints'
  | 'partlyRefused'
  | 'refused'
  | 'ignored';

/** `all`: all ports (KEP-2610). `ranges`: port ranges. `ports`: the listed ports. */
export type PortKind = 'all' | 'ranges' | 'ports';

/** Numbers of endpoints, each address and family once. */
export interface EndpointCounts {
  readonly ready: number;
  /** Terminating, still serving. */
  readonly terminating: number;
  readonly notReady: number;
  /** Endpoints on this node among the ready and the terminating ones. */
  readonly local: number;
}

/** `GET /api/v1/services` */
export interface ServiceSummary {
  readonly namespace: string;
  readonly name: string;
  readonly type: 'ClusterIP' | 'NodePort' | 'LoadBalancer' | 'ExternalName';
  readonly state: ServiceState;
  /** Cluster IPs, external IPs and load balancer IPs that this node serves. */
  readonly vips: readonly string[];
  /** VIPs of the object that this node serves on no port, because they are refused. */
  readonly refusedVips: readonly string[];
  readonly portKind: PortKind;
  /**
   * `all`, `5060/UDP`, `20000-50000/UDP`, `80:30080/TCP` (port and node port), `20000-29999/UDP (100 per pod)` (slices of
   * 100 ports, each of one pod).
   */
  readonly ports: readonly string[];
  /** Of both families: a pod with two addresses counts twice. */
  readonly endpoints: EndpointCounts;
  /** By family; null unless both families have endpoints. */
  readonly familyEndpoints: Readonly<Record<IpFamily, EndpointCounts>> | null;
  /** Timeout of `sessionAffinity: ClientIP`; 0 without session affinity. */
  readonly affinitySeconds: number;
  readonly internalTrafficPolicy: 'Cluster' | 'Local';
  readonly externalTrafficPolicy: 'Cluster' | 'Local';
  /** Creation time; null if the manifest has none. */
  readonly created: Time | null;
  /** Present with parameter `traffic`; rates as in `GET /api/v1/top`. */
  readonly traffic?: TrafficRates;
}

export type ServiceList = Page<ServiceSummary>;

/** `GET /api/v1/endpoints` */
export interface EndpointStatus {
  /** `namespace/name` of the Service. */
  readonly service: string;
  /** Port name of the Service; empty for an unnamed port and for all ports. */
  readonly portName: string;
  readonly family: IpFamily;
  readonly address: string;
  /** null for all-ports Services: packets keep their port. */
  readonly port: number | null;
  readonly protocol: Protocol | null;
  readonly ready: boolean;
  readonly serving: boolean;
  readonly terminating: boolean;
  readonly node: string | null;
  readonly zone: string | null;
  /** Whether the endpoint is on this node. */
  readonly local: boolean;
  readonly zoneHints: readonly string[];
  readonly nodeHints: readonly string[];
  /** Ports that the pod owns, such as `20100-20199/UDP`; null if connections are spread, or it owns none. */
  readonly ownedPorts: string | null;
  /** For clients that traffic policy Cluster serves; for owned ports: for all clients. */
  readonly cluster: EndpointDecision;
  /** For clients that traffic policy Local serves. */
  readonly localPolicy: EndpointDecision;
  /** Present with parameter `traffic`. */
  readonly traffic?: TrafficRates;
}

export type EndpointList = Page<EndpointStatus>;

/** `GET /api/v1/routes`: one VIP or node port of a Service port, as the backend gets it. */
export interface RouteStatus {
  readonly service: string;
  readonly portName: string;
  readonly family: IpFamily;
  readonly kind: 'cluster IP' | 'external IP' | 'loadbalancer IP' | 'node port';
  /** The VIP; null for a node port. */
  readonly vip: string | null;
  /** `all`, `80/TCP`, `5060/UDP,20000-50000/UDP`, or the node port. */
  readonly ports: string;
  /** Endpoints for clients in general, `address:port` or `address`. */
  readonly endpoints: readonly string[];
  /** Endpoints for pods and this node, if they differ from `endpoints`; otherwise null. */
  readonly podAndNodeEndpoints: readonly string[] | null;
  /** Number of ports of each pod; null if connections are spread over the endpoints. */
  readonly portsPerPod: number | null;
  /**
   * Clients whose source address is replaced by this node's. `remote owners`: clients that are no pods, if the owner of the
   * port is on another node.
   */
  readonly masquerade: 'all' | 'non-pods' | 'node' | 'none' | 'remote owners';
  /** What happens to packets that no endpoint gets; null if the Service does not handle them. */
  readonly otherwise: 'reject' | 'drop' | null;
  /** CIDRs that may connect; null for all sources. */
  readonly sourceRanges: readonly string[] | null;
  readonly affinitySeconds: number;
  /** What of a client selects its endpoint, on every node the same; null: endpoints are selected at random. */
  readonly consistentHash: HashInput | null;
}

export type RouteList = Page<RouteStatus>;

/** Slices of the same number in each range of owned ports: of one owner, or several in a row without owner. */
export interface OwnedSliceStatus {
  readonly firstOrdinal: number;
  readonly lastOrdinal: number;
  /** `20100-20199/UDP,30100-30199/TCP` */
  readonly ports: string;
  /** Address of the owner; null for `vacant`. */
  readonly owner: string | null;
  /**
   * `served`: packets reach the owner. `notServing`: packets are rejected, and what the owner sends from these UDP ports still
   * leaves as the VIP. `vacant`: packets are rejected. `refused`: another Service has the VIP, or this node has its address.
   */
  readonly state: 'served' | 'notServing' | 'vacant' | 'refused';
}

/** Ports owned by pods, in one IP family. */
export interface OwnedPortsStatus {
  readonly family: IpFamily;
  readonly ports: readonly string[];
  readonly portsPerPod: number;
  /** The VIP that serves the UDP ports, and as which their owners speak; null if it is refused, see `refusedVips`. */
  readonly udpVip: string | null;
  /** In ascending order; at most 500. */
  readonly slices: readonly OwnedSliceStatus[];
  readonly omittedSlices: number;
  /** Endpoints that own no ports; at most 500. */
  readonly withoutSlice: readonly {
    readonly address: string;
    readonly ordinal: number | null;
    readonly reason: string;
  }[];
  /** Ports within the ranges that other Services list one by one, and that therefore no pod owns. */
  readonly portsOfOtherServices: readonly {
    readonly vip: string;
    readonly ports: readonly string[];
  }[];
  /** VIPs on which these owners get nothing. `service`: the Service that serves the ports; null for an address of this node. */
  readonly refusedVips: readonly { readonly vip: string; readonly service: string | null }[];
}

/** `GET /api/v1/services/{namespace}/{name}` */
export interface ServiceDetail {
  readonly summary: ServiceSummary;
  readonly objects: {
    readonly uid: string;
    /** Annotation `portwide.dev/ports`. */
    readonly annotation: string | null;
    readonly ownedPortsAnnotation: string | null;
    readonly portsPerPodAnnotation: string | null;
    /** Annotation `portwide.dev/load-balancing`; null if absent. */
    readonly loadBalancingAnnotation: string | null;
    readonly allPorts: boolean | null;
    readonly slices: readonly {
      readonly name: string;
      readonly family: IpFamily;
      readonly endpoints: number;
      readonly ports: readonly string[];
    }[];
  };
  /** At most 500; `summary.endpoints` has their number. */
  readonly endpoints: readonly EndpointStatus[];
  readonly routes: readonly RouteStatus[];
  /** One entry for each family with owned ports. */
  readonly ownedPorts: readonly OwnedPortsStatus[];
  /** Refusals, warnings, missing endpoints, and rules that differ from what they should be. */
  readonly problems: readonly Problem[];
  /** Objects of the Service in the kernel, as they are and as they should be, the different ones first; at most 500. */
  readonly kernel: readonly KernelObject[];
  /** Number of objects of the Service, also beyond the first 500. */
  readonly kernelTotal: number;
  /** Number of objects that differ, also beyond the first 500, without changes in progress. */
  readonly kernelDifferent: number;
  /** false if syncs ran during each comparison, see `KernelDiff.stable`. */
  readonly kernelStable: boolean;
  /** Established ones first, closed ones last, at most 100; null if the kernel cannot be read: `problems` says why. */
  readonly connections: { readonly total: number; readonly entries: readonly FlowEntry[] } | null;
  /** null without a health check node port. */
  readonly healthCheck: { readonly port: number; readonly localEndpoints: number } | null;
  /** Latest Events that the agent recorded on the Service, the newest first; at most 20. */
  readonly events: readonly ServiceEvent[];
}

/** An Event that the agent recorded since its start. */
export interface ServiceEvent {
  readonly at: Time;
  readonly type: 'Normal' | 'Warning';
  readonly reason: string;
  readonly message: string;
}
