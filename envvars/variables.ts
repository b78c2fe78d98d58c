/** envvars/ computes the environment variables for Services that the kubelet sets in containers. */
import { familyOf } from '../api/addresses.ts';
import { ALL_PORT_FEATURES, portScheme } from '../api/all-ports.ts';
import { compareText } from '../api/collections.ts';
import type { Service, ServicePort } from '../api/objects.ts';
import { ownedVip, sliceOf } from '../api/owned-ports.ts';
import type { Labels } from '../api/policy-objects.ts';
import { rangeText } from '../api/ports.ts';

/** An environment variable, as in the `env` field of a container. */
export interface EnvVar {
  readonly name: string;
  readonly value: string;
}

/** The API server's Service: every container gets its variables. */
const API_SERVER = 'default/kubernetes';

/**
 * The variables that a container gets for Services, as in the kubelet (getServiceEnvVarMap): for the Services
 * of its namespace and for the API server's Service. A Service named `kubernetes` in the container's namespace
 * replaces the API server's. Services without a cluster IP (headless, ExternalName) have no variables.
 *
 * Variables are in the order of Service names. Two Services may have the same variable: `DB_SERVICE_PORT` is the
 * port of `db` and the URL of `db-service`. The kubelet uses either, because it iterates over a Go map. This
 * function uses the Service whose name sorts first (`db`).
 * @param services the Services of all namespaces, in any order.
 * @param serviceLinks `enableServiceLinks` of the pod; false: only the API server's Service.
 */
export function containerVariables(
  services: Iterable<Service>,
  namespace: string,
  serviceLinks: boolean,
): EnvVar[] {
  const seen = new Map<string, Service>();
  for (const service of services) {
    if (service.clusterIPs.length === 0) continue;
    const isOwn = serviceLinks && service.namespace === namespace;
    const isApiServer = service.key === API_SERVER && !seen.has(service.name);
    if (isOwn || isApiServer) seen.set(service.name, service);
  }
  const variables = new Map<string, EnvVar>();
  for (const service of [...seen.values()].sort((a, b) => compareText(a.name, b.name))) {
    for (const variable of serviceVariables(service)) {
      if (!variables.has(variable.name)) variables.set(variable.name, variable);
    }
  }
  return [...variables.values()];
}

/**
 * The variables of one Service, in the kubelet's order (envvars.FromServices), with the first cluster IP. A
 * Service without a cluster IP has no variables. A Service without ports has only the host variable; the kubelet
 * panics there.
 */
export function serviceVariables(service: Service): EnvVar[] {
  const [host] = service.clusterIPs;
  if (host === undefined) return [];
  const prefix = variableName(service.name);
  const ports = advertisedPorts(service);
  return [
    { name: `${prefix}_SERVICE_HOST`, value: host },
    ...portVariables(`${prefix}_SERVICE_PORT`, ports),
    ...linkVariables(`${prefix}_PORT`, host, ports),
  ];
}

/** What decides which ports a pod owns. */
export interface OwnerPod {
  readonly namespace: string;
  readonly labels: Labels;
  readonly ordinal: number;
}

/**
 * Two variables for each Service with owned ports that selects the pod: its ports, such as
 * `MEDIA_OWNED_PORTS=20100-20199/UDP,30100-30199/TCP`, and the VIPs to announce with them, one for each family:
 * `MEDIA_OWNED_VIPS=203.0.113.9,2001:db8::9`. The kubelet sets no such variables. Refused Services have none. A Service
 * without selector counts, because a user manages its endpoints.
 */
export function ownedPortVariables(services: Iterable<Service>, pod: OwnerPod): EnvVar[] {
  const { namespace, labels, ordinal } = pod;
  const isSelected = ({ ownersSelector = {} }: Service) =>
    Object.entries(ownersSelector).every(([key, value]) => labels[key] === value);
  return [...services]
    .filter((service) => service.namespace === namespace && isSelected(service))
    .sort((a, b) => compareText(a.name, b.name))
    .flatMap((service): EnvVar[] => {
      const scheme = portScheme(service, ALL_PORT_FEATURES);
      if (scheme.kind !== 'unlisted' || scheme.owned === undefined) return [];
      const { ranges, portsPerPod } = scheme.owned;
      const slices = ranges.flatMap((range) => sliceOf(range, portsPerPod, ordinal) ?? []);
      if (slices.length === 0) return [];
      const prefix = variableName(service.name);
      const vips = service.clusterIPs.flatMap((ip) => ownedVip(service, familyOf(ip)) ?? []);
      return [
        { name: `${prefix}_OWNED_PORTS`, value: slices.map(rangeText).join() },
        { name: `${prefix}_OWNED_VIPS`, value: vips.join() },
      ];
    });
}

/**
 * The ports with variables. An all-ports Service has none (KEP-2610): its listed port is a placeholder. A refused
 * all-ports Service has none either, nor with the feature gate off. A container keeps the variables from its start,
 * and the Service may be served later.
 */
function advertisedPorts(service: Service): readonly ServicePort[] {
  return portScheme(service, ALL_PORT_FEATURES).kind === 'listed' ? service.ports : [];
}

function portVariables(name: string, ports: readonly ServicePort[]): EnvVar[] {
  const [first] = ports;
  if (first === undefined) return [];
  return [
    { name, value: String(first.port) },
    ...ports
      .filter((port) => port.name !== '')
      .map((port) => ({ name: `${name}_${variableName(port.name)}`, value: String(port.port) })),
  ];
}

/** The variables that Docker defined for linked containers. */
function linkVariables(prefix: string, host: string, ports: readonly ServicePort[]): EnvVar[] {
  const urlHost = familyOf(host) === 'IPv6' ? `[${host}]` : host;
  return ports.flatMap(({ protocol, port }, index) => {
    const scheme = protocol.toLowerCase();
    const url = `${scheme}://${urlHost}:${port}`;
    const name = `${prefix}_${port}_${protocol}`;
    return [
      ...(index === 0 ? [{ name: prefix, value: url }] : []),
      { name, value: url },
      { name: `${name}_PROTO`, value: scheme },
      { name: `${name}_PORT`, value: String(port) },
      { name: `${name}_ADDR`, value: host },
    ];
  });
}

/** Converts `u-d-p` to `U_D_P`. Like the kubelet, keeps a leading digit. */
function variableName(name: string): string {
  return name.toUpperCase().replaceAll('-', '_');
}
