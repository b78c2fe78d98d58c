/** What a Service asks to have served. */
import { familyOf } from '../api/addresses.ts';
import {
  PORTS_ANNOTATION,
  type PortScheme,
  portScheme,
  type ServiceRefusal,
} from '../api/all-ports.ts';
import { trimmedCopy } from '../api/collections.ts';
import { IP_FAMILIES, type IpFamily, type Service } from '../api/objects.ts';
import type { RouteMatch } from './route.ts';

/**
 * What one Service asks to have served in one family, before VIPs are granted and endpoints are
 * chosen: one for each listed port, one for all ports or all ranges.
 */
export interface ServedPort {
  /** Unique over all Services and families; becomes the Route's id. */
  readonly id: string;
  /** `ns/name` or `ns/name:port`, as kube-proxy hashes it into chain names. */
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
}

export interface ServedService {
  readonly ports: readonly ServedPort[];
  readonly refusals: readonly ServiceRefusal[];
  /** Things worth a warning that are served all the same: `field: message`. */
  readonly warnings: readonly string[];
}

const NOT_SERVED: ServedService = { ports: [], refusals: [], warnings: [] };

/**
 * What of a Service is to be served. Services of other proxies and headless ones are left alone, as
 * kube-proxy does; a refused Service is not served at all, its placeholder port included.
 */
export function servedPorts(service: Service, allPortsEnabled: boolean): ServedService {
  if (service.otherProxy || service.headlessLabel) return NOT_SERVED;
  const mistakes = annotationWarnings(service);
  const scheme = portScheme(service, allPortsEnabled);
  if (scheme.kind === 'refused') {
    return { ...NOT_SERVED, refusals: scheme.refusals, warnings: mistakes };
  }
  if (service.type === 'ExternalName' || service.headless) {
    return mistakes.length === 0 ? NOT_SERVED : { ...NOT_SERVED, warnings: mistakes };
  }

  const ports: ServedPort[] = [];
  const warnings = [...mistakes];
  for (const family of IP_FAMILIES) {
    const clusterIP = service.clusterIPs.find((address) => familyOf(address) === family);
    // kube-proxy too serves a family only where the Service has a cluster IP of it.
    if (clusterIP === undefined) continue;
    ports.push(...servedInFamily(service, scheme, family, clusterIP));
    const warning = openFamilyWarning(service, family);
    if (warning !== undefined) warnings.push(warning);
  }
  return {
    ports: trimmedCopy(ports),
    refusals: NOT_SERVED.refusals,
    warnings: trimmedCopy(warnings),
  };
}

function servedInFamily(
  service: Service,
  scheme: PortScheme,
  family: IpFamily,
  clusterIP: string,
): ServedPort[] {
  const isLoadBalancer = service.type === 'LoadBalancer';
  const ofFamily = (addresses: readonly string[]) =>
    addresses.filter((address) => familyOf(address) === family);
  const common = {
    family,
    clusterIP,
    externalIPs: trimmedCopy(unique(ofFamily(service.externalIPs))),
    loadBalancerIPs: trimmedCopy(isLoadBalancer ? unique(ofFamily(vipIngress(service))) : []),
    healthCheckNodePort:
      isLoadBalancer && service.externalTrafficPolicy === 'Local' ? service.healthCheckNodePort : 0,
    sourceRanges: isLoadBalancer ? sourceRanges(service, family) : undefined,
  };
  if (scheme.kind !== 'listed') {
    const match: RouteMatch =
      scheme.kind === 'ranges' ? { kind: 'ranges', ranges: scheme.ranges } : { kind: 'all' };
    const id = `${service.key}/${family}`;
    return [{ ...common, id, name: service.key, portName: '', match, nodePort: 0 }];
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

/** With ipMode Proxy the load balancer must see the traffic, so nodes leave the address alone. */
export function vipIngress(service: Service): string[] {
  return service.loadBalancerIngress
    .filter((ingress) => ingress.ipMode === 'VIP')
    .map((ingress) => ingress.ip);
}

/** @returns undefined when every client of the family may connect. */
function sourceRanges(service: Service, family: IpFamily): readonly string[] | undefined {
  const ranges = service.loadBalancerSourceRanges.filter((cidr) => familyOf(cidr) === family);
  // kube-proxy leaves a family without a range of its own open; see openFamilyWarning.
  if (ranges.length === 0 || ranges.some((cidr) => cidr.endsWith('/0'))) return undefined;
  return unique(ranges);
}

/**
 * Whoever writes `portwide.dev/port: all` asks for all ports, and gets the listed ones. One warning a
 * Service, however many annotations it has.
 */
function annotationWarnings({ unknownAnnotations = [] }: Service): readonly string[] {
  const [field, ...others] = unknownAnnotations;
  if (field === undefined) return NOT_SERVED.warnings;
  const more = others.length === 0 ? '' : ` (and ${others.length} more)`;
  return [
    `${field}${more}: is not known and means nothing; ports are given by ${PORTS_ANNOTATION}`,
  ];
}

function openFamilyWarning(service: Service, family: IpFamily): string | undefined {
  const ranges = service.loadBalancerSourceRanges;
  if (service.type !== 'LoadBalancer' || ranges.length === 0) return undefined;
  if (ranges.some((cidr) => familyOf(cidr) === family)) return undefined;
  return `spec.loadBalancerSourceRanges: no ${family} range is listed, so ${family} is open to everybody`;
}

function unique(values: readonly string[]): string[] {
  return [...new Set(values)].sort();
}
