/** Reads from a Service the ports to serve in each family, before VIP conflicts are resolved and endpoints selected. */
import { familyOf } from '../api/addresses.ts';
import {
  PORTS_ANNOTATION,
  type PortFeatures,
  type PortScheme,
  portScheme,
  type ServiceRefusal,
} from '../api/all-ports.ts';
import { trimmedCopy } from '../api/collections.ts';
import type { HashInput } from '../api/load-balancing.ts';
import { IP_FAMILIES, type IpFamily, type Service } from '../api/objects.ts';
import {
  OWNED_PORTS_ANNOTATION,
  type OwnedPorts,
  ownedVip,
  PORTS_PER_POD_ANNOTATION,
  sliceCount,
} from '../api/owned-ports.ts';
import { normalizeRanges, type PortRange, rangesOverlap, rangeText } from '../api/ports.ts';
import { loadBalancing } from './load-balancing.ts';
import type { RouteMatch } from './route.ts';

/**
 * One listed port, all ports, or all port ranges of a Service in one family. VIPs are not granted yet and endpoints are
 * not selected yet.
 */
export interface ServedPort {
  /** Unique across Services and families; becomes `Route.id`. */
  readonly id: string;
  /** `ns/name` or `ns/name:port`. kube-proxy's chain names contain a hash of this name and the protocol. */
  readonly name: string;
  readonly portName: string;
  readonly family: IpFamily;
  readonly match: RouteMatch;
  readonly clusterIP: string;
  readonly externalIPs: readonly string[];
  readonly loadBalancerIPs: readonly string[];
  readonly nodePort: number;
  readonly healthCheckNodePort: number;
  readonly sourceRanges: readonly string[] | undefined;
  /** Set if pods own these ports, in slices; `match` has the ranges. */
  readonly ownership?: Ownership;
  /** See `Route.consistentHash`. */
  readonly consistentHash?: HashInput;
}

/** How the owned ports of a Service are cut, and as which address their owners speak. */
export interface Ownership {
  readonly ports: OwnedPorts;
  /** See `ownedVip`. */
  readonly vip: string;
}

/** The served ports of one Service, with its refusals and warnings. */
export interface ServedService {
  readonly ports: readonly ServedPort[];
  readonly refusals: readonly ServiceRefusal[];
  /** Problems that do not keep the Service from being served, as `field: message`. */
  readonly warnings: readonly string[];
}

/** The warning to a Service whose external IPs are not served. */
export const EXTERNAL_IPS_OFF =
  'spec.externalIPs: not served, because the feature gate AllowServiceExternalIPs is off on this node; use a Service of type LoadBalancer';

const NOT_SERVED: ServedService = { ports: [], refusals: [], warnings: [] };

/**
 * The ports of a Service to serve. As in kube-proxy, Services of other proxies, headless Services and ExternalName
 * Services have no served ports. A refused Service has no served ports either, not even its placeholder port.
 */
export function servedPorts(service: Service, features: PortFeatures): ServedService {
  if (service.otherProxy || service.headlessLabel) return NOT_SERVED;
  const problems = objectWarnings(service);
  const scheme = portScheme(service, features);
  if (scheme.kind === 'refused') {
    return { ...NOT_SERVED, refusals: scheme.refusals, warnings: problems };
  }
  if (service.type === 'ExternalName' || service.headless) {
    return problems.length === 0 ? NOT_SERVED : { ...NOT_SERVED, warnings: problems };
  }

  const spreading = loadBalancing(service, scheme, features);
  if (spreading.refusals.length > 0) {
    return { ...NOT_SERVED, refusals: spreading.refusals, warnings: problems };
  }

  const ports: ServedPort[] = [];
  const warnings = [...problems, ...spreading.warnings, ...localPortWarnings(scheme)];
  // As in kube-proxy, the Service keeps its other addresses.
  const externalIPs = servedExternalIPs(service, features);
  const areServed = externalIPs === service.externalIPs;
  if (!areServed) warnings.push(EXTERNAL_IPS_OFF);
  const served = areServed ? service : { ...service, externalIPs };
  for (const family of IP_FAMILIES) {
    const clusterIP = service.clusterIPs.find((address) => familyOf(address) === family);
    // Like kube-proxy, serve a family only if the Service has a cluster IP of that family.
    if (clusterIP === undefined) continue;
    ports.push(...servedInFamily(served, scheme, family, clusterIP, spreading.consistentHash));
    warnings.push(...sourceRangeWarnings(service, family));
  }
  return {
    ports: trimmedCopy(ports),
    refusals: NOT_SERVED.refusals,
    warnings: trimmedCopy(warnings),
  };
}

/** The health check node port that nodes answer; 0 for none. */
export function healthCheckNodePort({
  type,
  externalTrafficPolicy,
  healthCheckNodePort: port,
}: Service): number {
  return type === 'LoadBalancer' && externalTrafficPolicy === 'Local' ? port : 0;
}

function servedInFamily(
  service: Service,
  scheme: PortScheme,
  family: IpFamily,
  clusterIP: string,
  consistentHash: HashInput | undefined,
): ServedPort[] {
  const isLoadBalancer = service.type === 'LoadBalancer';
  const ofFamily = (addresses: readonly string[]) =>
    addresses.filter((address) => familyOf(address) === family);
  const common = {
    family,
    clusterIP,
    externalIPs: trimmedCopy(unique(ofFamily(service.externalIPs))),
    loadBalancerIPs: trimmedCopy(
      isLoadBalancer && !isClosed(service, family)
        ? unique(ofFamily(servedLoadBalancerIPs(service)))
        : [],
    ),
    healthCheckNodePort: healthCheckNodePort(service),
    sourceRanges: isLoadBalancer ? sourceRanges(service, family) : undefined,
    ...(consistentHash === undefined ? {} : { consistentHash }),
  };
  if (scheme.kind === 'unlisted') {
    const { spread, owned } = scheme;
    const unlisted = { ...common, name: service.key, portName: '', nodePort: 0 };
    const id = `${service.key}/${family}`;
    const ports: ServedPort[] = [];
    if (spread === 'all') ports.push({ ...unlisted, id, match: { kind: 'all' } });
    else if (spread.length > 0)
      ports.push({ ...unlisted, id, match: { kind: 'ranges', ranges: spread } });
    if (owned !== undefined) {
      const match: RouteMatch = { kind: 'ranges', ranges: normalizeRanges(owned.ranges) };
      const ownership = { ports: owned, vip: ownedVip(service, family) ?? clusterIP };
      ports.push({ ...unlisted, id: `${id}/owned`, match, ownership });
    }
    return ports;
  }
  return service.ports.map((port) => ({
    ...common,
    id: `${service.key}/${family}/${port.protocol}/${port.name}`,
    name: port.name === '' ? service.key : `${service.key}:${port.name}`,
    portName: port.name,
    match: { kind: 'port', protocol: port.protocol, port: port.port },
    nodePort: service.type === 'ClusterIP' ? 0 : port.nodePort,
  }));
}

/**
 * The load balancer IPs to serve. With ipMode Proxy traffic must go through the load balancer, so nodes do not serve the
 * load balancer IP.
 */
function servedLoadBalancerIPs(service: Service): string[] {
  return service.loadBalancerIngress
    .filter((ingress) => ingress.ipMode === 'VIP')
    .map((ingress) => ingress.ip);
}

function servedExternalIPs(
  { externalIPs }: Service,
  features: Pick<PortFeatures, 'externalIPs'>,
): readonly string[] {
  return features.externalIPs || externalIPs.length === 0 ? externalIPs : [];
}

/** Addresses that are DNATed to the endpoints of a Service: cluster IPs, served external and load balancer IPs. */
export function serviceAddresses(
  service: Service,
  features: Pick<PortFeatures, 'externalIPs'>,
): string[] {
  return [
    ...service.clusterIPs,
    ...servedExternalIPs(service, features),
    ...servedLoadBalancerIPs(service),
  ];
}

/** @returns undefined if all sources of the family are allowed. */
function sourceRanges(service: Service, family: IpFamily): readonly string[] | undefined {
  const ranges = service.loadBalancerSourceRanges.filter((cidr) => familyOf(cidr) === family);
  // Like kube-proxy, do not restrict a family for which no range is listed; see sourceRangeWarnings.
  if (ranges.length === 0 || ranges.some((cidr) => cidr.endsWith('/0'))) return undefined;
  return unique(ranges);
}

function objectWarnings(service: Service): readonly string[] {
  const annotations = annotationWarnings(service);
  if (service.addressProblems === undefined) return annotations;
  return [...service.addressProblems.warnings, ...annotations];
}

/**
 * Warns of misspelled annotations: with `portwide.dev/port: all` only the listed ports are served. One warning
 * per Service, also for several annotations.
 */
function annotationWarnings(service: Service): readonly string[] {
  const { unknownAnnotations = [], ownedPortsAnnotation, portsPerPodAnnotation } = service;
  if (portsPerPodAnnotation !== undefined && ownedPortsAnnotation === undefined) {
    const field = `metadata.annotations["${PORTS_PER_POD_ANNOTATION}"]`;
    return [`${field}: has no effect without ${OWNED_PORTS_ANNOTATION}`];
  }
  const [field, ...others] = unknownAnnotations;
  if (field === undefined) return NOT_SERVED.warnings;
  const more = others.length === 0 ? '' : ` (and ${others.length} more)`;
  return [
    `${field}${more}: unknown annotation, ignored; set ${PORTS_ANNOTATION} to serve all ports or port ranges`,
  ];
}

/** Linux' default of `net.ipv4.ip_local_port_range`: source ports of sockets that bind none, also of IPv6. */
const LOCAL_PORTS: PortRange = { protocol: 'UDP', from: 32768, to: 60999 };

/**
 * Warns of owned UDP ports that the kernel also gives to sockets of the owner. Packets from an owned port leave as the
 * VIP and are not tracked, so they are not sent on to the endpoints of other Services, such as DNS.
 */
function localPortWarnings(scheme: PortScheme): string[] {
  if (scheme.kind !== 'unlisted' || scheme.owned === undefined) return [];
  const { ranges, portsPerPod } = scheme.owned;
  const overlapping = ranges.filter((range) => {
    const to = range.from + sliceCount(range, portsPerPod) * portsPerPod - 1;
    return rangesOverlap([{ ...range, to }], [LOCAL_PORTS]);
  });
  const [first] = overlapping;
  if (first === undefined) return [];
  const more = overlapping.length === 1 ? '' : ` (and ${overlapping.length - 1} more)`;
  const field = `metadata.annotations["${OWNED_PORTS_ANNOTATION}"]`;
  const local = `${LOCAL_PORTS.from}-${LOCAL_PORTS.to}`;
  return [
    `${field}: ${rangeText(first)}${more} overlaps ${local}, Linux' default net.ipv4.ip_local_port_range. A socket that gets an owned port as its source port loses the answers of Services such as DNS; own other ports, or narrow the sysctl in the pods`,
  ];
}

/**
 * Whether an unreadable range may be the only one of the family. Its load balancer IPs are then not served: without a
 * range, all sources would be allowed.
 */
function isClosed(service: Service, family: IpFamily): boolean {
  const { addressProblems, loadBalancerSourceRanges: ranges } = service;
  if (addressProblems?.hasUnreadableSourceRange !== true) return false;
  return !ranges.some((cidr) => familyOf(cidr) === family);
}

function sourceRangeWarnings(service: Service, family: IpFamily): string[] {
  const ranges = service.loadBalancerSourceRanges;
  if (service.type !== 'LoadBalancer') return [];
  if (isClosed(service, family)) {
    return [
      `spec.loadBalancerSourceRanges: no ${family} range can be read, so no ${family} load balancer IP is served`,
    ];
  }
  if (ranges.length === 0 || ranges.some((cidr) => familyOf(cidr) === family)) return [];
  return [
    `spec.loadBalancerSourceRanges: no ${family} range is listed, so all ${family} sources are allowed`,
  ];
}

function unique(values: readonly string[]): string[] {
  return [...new Set(values)].sort();
}
