/** Warnings about Services that are served nevertheless, and about their EndpointSlices. */
import type { EndpointSlice, ObjectKey, Service } from '../api/objects.ts';
import { SERVICE_NAME_FIELD } from '../api/read-endpointslice.ts';
import type { Route } from './route.ts';
import type { ServedPort } from './served-ports.ts';
import { vipFields } from './vip-conflicts.ts';

export interface ServiceWarning {
  readonly serviceKey: ObjectKey;
  /** The EndpointSlice that the warning is about; undefined: the Service itself. */
  readonly sliceKey?: ObjectKey;
  /** The warning depends on this node; other nodes may not have it. */
  readonly isOfThisNode?: true;
  /** The field, what is the matter with it, and what to do. */
  readonly message: string;
}

/** A TCP port that something on this node listens on. */
export interface NodeListener {
  /** Such as `ssh`. */
  readonly name: string;
  readonly port: number;
  readonly isOnLoopbackOnly: boolean;
}

/** Limit of ports listed in a message. */
const MAX_LISTED_PORTS = 5;

/**
 * Objects that do not fit together and so serve nothing. Only where all objects come at the same time, from
 * manifests: an API server tells of Services and of EndpointSlices in any order, and assigns cluster IPs itself.
 * @param service undefined: there is no such Service.
 * @param served what of it is served; nothing of one that is not there.
 */
export function mismatchWarnings(
  serviceKey: ObjectKey,
  service: Service | undefined,
  slices: readonly EndpointSlice[],
  served: readonly ServedPort[],
): ServiceWarning[] {
  if (service === undefined) {
    const message = `${SERVICE_NAME_FIELD}: there is no Service ${serviceKey}, so nothing is served from this slice; correct the name, or add the Service`;
    return slices.map(({ key: sliceKey }) => ({ serviceKey, sliceKey, message }));
  }
  if (!needsClusterIP(service)) return [];
  if (service.clusterIPs.length === 0) {
    const nodePorts =
      service.type === 'ClusterIP' ? '' : ', not even on its node ports and load balancer IPs';
    const message = `spec.clusterIPs: there is no cluster IP, so the Service is not served${nodePorts}; a cluster assigns one, a manifest has to name it`;
    return [{ serviceKey, message }];
  }
  // All ports, and ranges, are served from every slice.
  if (served.some(({ match }) => match.kind !== 'port') || served.length === 0) return [];
  return slices.flatMap((slice) => portMismatch(service, slice) ?? []);
}

function needsClusterIP({ type, headless, headlessLabel, otherProxy }: Service): boolean {
  return type !== 'ExternalName' && !headless && !headlessLabel && !otherProxy;
}

function portMismatch(service: Service, slice: EndpointSlice): ServiceWarning | undefined {
  const { key: serviceKey, ports } = service;
  const isServed = slice.ports.some(
    ({ name, protocol, port }) =>
      port !== undefined &&
      ports.some((other) => other.name === name && other.protocol === protocol),
  );
  if (isServed || slice.endpoints.length === 0) return undefined;
  const names = ports
    .slice(0, MAX_LISTED_PORTS)
    .map(({ name, protocol }) => (name === '' ? `unnamed ${protocol}` : `"${name}" ${protocol}`));
  const wanted = `${names.join(', ')}${ports.length > MAX_LISTED_PORTS ? ', …' : ''}`;
  const message = `ports: no port has a number and the name and protocol of a port of Service ${serviceKey} (${wanted}), so nothing is served from this slice; name the ports as the Service does`;
  return { serviceKey, sliceKey: slice.key, message };
}

/**
 * Ports that a Service takes from the node itself. They are served all the same, as by kube-proxy.
 * @param isLoopbackServed whether node ports are served on the loopback address.
 */
export function listenerWarnings(
  routes: Iterable<Route>,
  listeners: readonly NodeListener[],
  nodeAddresses: ReadonlySet<string>,
  isLoopbackServed: boolean,
): ServiceWarning[] {
  // Routes of both families may say the same.
  const warnings = new Map<string, ServiceWarning>();
  const warn = (warning: ServiceWarning) => warnings.set(warning.message, warning);
  for (const route of routes) {
    const { match, serviceKey, nodePort } = route;
    if (match.kind !== 'port' || match.protocol !== 'TCP') continue;
    for (const { name, port, isOnLoopbackOnly } of listeners) {
      if (nodePort === port && (!isOnLoopbackOnly || isLoopbackServed)) {
        const message = `spec.ports.nodePort: ${port}/TCP is also the port of ${name} on nodes: connections to it go to the Service where node ports are served; use another node port`;
        warn({ serviceKey, message });
      }
      if (match.port !== port || isOnLoopbackOnly) continue;
      for (const [field, vip] of vipFields(route)) {
        if (!nodeAddresses.has(vip)) continue;
        const message = `${field}: ${vip} is an address of this node, and ${port}/TCP is the port of ${name} there: connections to it go to the Service; use another address or port`;
        warn({ serviceKey, isOfThisNode: true, message });
      }
    }
  }
  return [...warnings.values()];
}

/** A pod on the host network brings the node's ssh and kubelet under an all-ports VIP. */
export function nodeEndpointWarnings(
  routes: Iterable<Route>,
  nodeAddresses: ReadonlySet<string>,
): ServiceWarning[] {
  return [...routes].flatMap(({ match, serviceKey, clusterEndpoints }) => {
    if (match.kind !== 'all') return [];
    const own = clusterEndpoints.find(({ address }) => nodeAddresses.has(address));
    if (own === undefined) return [];
    const message = `all ports of endpoint ${own.address}, which is this node, are reachable through the VIP`;
    return [{ serviceKey, isOfThisNode: true as const, message }];
  });
}
