/** Objects as a source delivers them, with defaults for all fields. */
import type {
  ApiObject,
  EndpointSlice,
  IpFamily,
  Service,
  ServicePort,
  SliceEndpoint,
  SlicePort,
} from '../api/objects.ts';
import type { Pod } from '../api/policy-objects.ts';
import type { Route } from '../services/route.ts';
import type { ObjectSink } from '../sources/source.ts';

export function service(fields: Partial<Service> = {}): Service {
  const namespace = fields.namespace ?? 'default';
  const name = fields.name ?? 'web';
  return {
    kind: 'Service',
    key: `${namespace}/${name}`,
    namespace,
    name,
    uid: '',
    creationTimestamp: '2026-01-01T00:00:00Z',
    type: 'ClusterIP',
    clusterIPs: ['10.96.0.10'],
    headless: false,
    externalName: undefined,
    publishNotReadyAddresses: false,
    ports: [servicePort()],
    allPorts: undefined,
    portsAnnotation: undefined,
    externalIPs: [],
    loadBalancerIngress: [],
    loadBalancerSourceRanges: [],
    externalTrafficPolicy: 'Cluster',
    internalTrafficPolicy: 'Cluster',
    healthCheckNodePort: 0,
    affinitySeconds: 0,
    otherProxy: false,
    headlessLabel: false,
    ...fields,
  };
}

export function servicePort(fields: Partial<ServicePort> = {}): ServicePort {
  return { name: '', protocol: 'TCP', port: 80, nodePort: 0, ...fields };
}

export function slice(
  endpoints: readonly SliceEndpoint[],
  fields: Partial<EndpointSlice> & { ports?: readonly SlicePort[] } = {},
): EndpointSlice {
  const serviceKey = fields.serviceKey ?? 'default/web';
  const name = fields.name ?? `${serviceKey.split('/')[1]}-1`;
  return {
    kind: 'EndpointSlice',
    key: `default/${name}`,
    namespace: 'default',
    name,
    serviceKey,
    headlessLabel: false,
    family: 'IPv4',
    triggerTime: undefined,
    ports: [{ name: '', protocol: 'TCP', port: 8080 }],
    endpoints,
    ...fields,
  };
}

export function endpoint(address: string, fields: Partial<SliceEndpoint> = {}): SliceEndpoint {
  return {
    address,
    ready: true,
    serving: true,
    terminating: false,
    nodeName: 'node-a',
    zone: undefined,
    hostname: undefined,
    hintedZones: undefined,
    hintedNodes: undefined,
    ...fields,
  };
}

/** A Pod; by default with the addresses of no endpoint. */
export function pod(fields: Partial<Pod> = {}): Pod {
  const namespace = fields.namespace ?? 'default';
  const name = fields.name ?? 'web-0';
  return {
    kind: 'Pod',
    key: `${namespace}/${name}`,
    namespace,
    name,
    creationTimestamp: '2026-01-01T00:00:00Z',
    labels: {},
    addresses: [],
    nodeName: 'node-a',
    hostNetwork: false,
    finished: false,
    namedPorts: [],
    ...fields,
  };
}

/** Adds an object; with an EndpointSlice also a Pod for each endpoint, without which an endpoint owns no ports. */
export function upsertWithPods(sink: Pick<ObjectSink, 'upsert'>, object: ApiObject): void {
  sink.upsert(object);
  if (object.kind !== 'EndpointSlice') return;
  const { namespace, endpoints } = object;
  for (const { address } of endpoints) sink.upsert(podAt(address, namespace));
}

/** A Pod with an address, and a name made of it. */
export function podAt(address: string, namespace = 'default'): Pod {
  const name = `pod-${address.replaceAll(/[.:]+/g, '-')}`;
  return pod({ namespace, name, addresses: [address] });
}

/** A Route with a cluster IP and the given endpoints, all on this node. */
export function route(fields: Partial<Route> = {}, addresses: readonly string[] = []): Route {
  const family: IpFamily = fields.family ?? 'IPv4';
  const isListed = (fields.match?.kind ?? 'port') === 'port';
  const endpoints = addresses.map((address) => ({
    address,
    port: isListed ? 8080 : undefined,
  }));
  return {
    id: `default/web/${family}`,
    serviceKey: 'default/web',
    name: 'default/web',
    family,
    match: { kind: 'port', protocol: 'TCP', port: 80 },
    clusterIP: family === 'IPv4' ? '10.96.0.10' : 'fd00:10:96::a',
    externalIPs: [],
    loadBalancerIPs: [],
    nodePort: 0,
    healthCheckNodePort: 0,
    sourceRanges: undefined,
    internalLocal: false,
    externalLocal: false,
    affinitySeconds: 0,
    clusterEndpoints: endpoints,
    localEndpoints: [],
    hasEndpointsAnywhere: endpoints.length > 0,
    servingEndpoints: endpoints,
    notServingEndpoints: [],
    ...fields,
  };
}
