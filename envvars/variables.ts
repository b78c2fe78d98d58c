/** envvars/ makes the environment variables by which the kubelet tells containers of Services. */
import { familyOf } from '../api/addresses.ts';
import { portScheme } from '../api/all-ports.ts';
import { compareText } from '../api/collections.ts';
import type { Service, ServicePort } from '../api/objects.ts';

/** An environment variable, as `env` of a container has it. */
export interface EnvVar {
  readonly name: string;
  readonly value: string;
}

/** The API server's Service: every container hears of it. */
const API_SERVER = 'default/kubernetes';

/**
 * The variables that a container gets for Services, as the kubelet makes them when it starts one
 * (getServiceEnvVarMap): for the Services of its own namespace and for the API server's, which one of
 * the same name in its own namespace takes the place of. Services without a cluster IP, headless ones
 * and those of type ExternalName, make none.
 *
 * They come in the order of the Services' names. The kubelet's order is that of a map in Go, so of two
 * Services that make one variable (`db` and `db-service` both make `DB_SERVICE_PORT`) it takes either;
 * here it is the first, whose port that name stands for.
 * @param services those of all namespaces, in any order.
 * @param serviceLinks `enableServiceLinks` of the pod: false leaves the API server's Service alone.
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
 * The variables of one Service, in the kubelet's order (envvars.FromServices). Of a dual-stack Service
 * they have the first cluster IP only. There are none without a cluster IP, and without ports only
 * that of the host, where the kubelet would fail.
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

/**
 * None for an all-ports Service (KEP-2610), refused or not: what it lists is a placeholder that nobody
 * serves. Its host is told all the same, so that a container that starts while the Service is refused
 * has it once it is served. So it does not matter whether the feature gate is on.
 */
function advertisedPorts(service: Service): readonly ServicePort[] {
  return portScheme(service, true).kind === 'listed' ? service.ports : [];
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

/** Those that Docker once made for linked containers. */
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

/** `u-d-p` to `U_D_P`. A digit at the beginning stays, as it does in the kubelet. */
function variableName(name: string): string {
  return name.toUpperCase().replaceAll('-', '_');
}
