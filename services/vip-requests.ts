/** What Services request: ports of VIPs, and node ports; and which addresses belong to a Service. */
import type { IpFamily, ObjectKey, Service } from '../api/objects.ts';
import type { PortRange } from '../api/ports.ts';
import type { Route, RouteMatch } from './route.ts';
import type { ServedPort } from './served-ports.ts';

/** The pseudo-VIP of node ports, per family: a dual-stack Service uses the same number in both families. */
export const nodePortsOf = (family: IpFamily) => `node port, ${family}`;

/** A request of a Service for a VIP: for one port, for port ranges, or for all ports. */
export interface VipRequest {
  readonly vip: string;
  readonly id: string;
  readonly match: RouteMatch;
  readonly field: string;
  readonly serviceKey: ObjectKey;
  readonly family: IpFamily;
  /** Whether pods own the ports. */
  readonly isOwned: boolean;
  /** See `priorityOf`. */
  readonly priority: string;
}

/** Where the address of a Service is set, from the strongest claim to the weakest. */
export const CLAIM_KINDS = ['cluster', 'loadBalancer', 'external'] as const;
export type ClaimKind = (typeof CLAIM_KINDS)[number];

/** The claim of a Service to an address, whether or not the Service is served. */
export interface VipClaim {
  readonly vip: string;
  readonly kind: ClaimKind;
  readonly serviceKey: ObjectKey;
  /** Creation time, then namespace/name. */
  readonly priority: string;
}

/** The addresses of a Service, and the fields that decide about its claims. */
export type ServiceVips = Pick<
  Service,
  'key' | 'creationTimestamp' | 'type' | 'clusterIPs' | 'loadBalancerIngress'
>;

/** Sort key of a served port: creation time of the Service, then namespace/name. The first wins a conflict. */
export function priorityOf(
  { id }: Pick<ServedPort, 'id'>,
  serviceKey: ObjectKey,
  creationTimestamp: string,
): string {
  // A Service without a creation timestamp comes from a manifest and counts as the youngest.
  return `${creationTimestamp || '~'} ${serviceKey} ${id}`;
}

/**
 * The strongest claim of a Service to each of its addresses. A Service that is refused, or that another proxy serves,
 * has its cluster IP and load balancer IPs nevertheless; a load balancer IP with ipMode Proxy, too.
 * @param requests of the same Service.
 */
export function claimsOf(service: ServiceVips, requests: readonly VipRequest[]): VipClaim[] {
  const { key: serviceKey, creationTimestamp, type, clusterIPs, loadBalancerIngress } = service;
  const priority = priorityOf({ id: '' }, serviceKey, creationTimestamp);
  const claims = new Map<string, VipClaim>();
  const add = (kind: ClaimKind, vips: readonly string[]) => {
    for (const vip of vips)
      if (!claims.has(vip)) claims.set(vip, { vip, kind, serviceKey, priority });
  };
  add('cluster', clusterIPs);
  if (type === 'LoadBalancer') {
    add(
      'loadBalancer',
      loadBalancerIngress.map(({ ip }) => ip),
    );
  }
  const external = requests.filter(({ vip, family }) => vip !== nodePortsOf(family));
  add(
    'external',
    external.map(({ vip }) => vip),
  );
  return [...claims.values()];
}

/** The requests of a served port. */
export function requestsOf(
  port: ServedPort,
  serviceKey: ObjectKey,
  creationTimestamp: string,
): VipRequest[] {
  const priority = priorityOf(port, serviceKey, creationTimestamp);
  const request = (vip: string, field: string, match = port.match): VipRequest => ({
    vip,
    id: port.id,
    match,
    field,
    serviceKey,
    family: port.family,
    isOwned: port.ownership !== undefined,
    priority,
  });
  const vips = new Map<string, VipRequest>();
  for (const [field, vip] of vipFields(port))
    if (!vips.has(vip)) vips.set(vip, request(vip, field));
  const requests = [...vips.values()];
  if (port.nodePort > 0 && port.match.kind === 'port') {
    const match: RouteMatch = { ...port.match, port: port.nodePort };
    requests.push(request(nodePortsOf(port.family), 'spec.ports.nodePort', match));
  }
  return requests;
}

/** The VIPs of a Service with the field that names each; one VIP may be in several fields. */
export function vipFields({
  clusterIP,
  externalIPs,
  loadBalancerIPs,
}: Pick<Route, 'clusterIP' | 'externalIPs' | 'loadBalancerIPs'>): [field: string, vip: string][] {
  const withField = (field: string, vips: readonly string[]) =>
    vips.map((vip): [string, string] => [field, vip]);
  return [
    ...withField('spec.clusterIPs', clusterIP === undefined ? [] : [clusterIP]),
    ...withField('spec.externalIPs', externalIPs),
    ...withField('status.loadBalancer.ingress', loadBalancerIPs),
  ];
}

/** The port of a request for one port, or its ranges; sorted. Empty for all ports. */
export function rangesOf({ match }: VipRequest): readonly PortRange[] {
  if (match.kind === 'ranges') return match.ranges;
  if (match.kind === 'all') return [];
  return [{ protocol: match.protocol, from: match.port, to: match.port }];
}
