/** Resolves a trace request to addresses, and computes its paths. Reads the agent's objects in time slices. */
import { canonicalCidr, cidrContains, familyOf, isLoopback } from '../../api/addresses.ts';
import { IP_FAMILIES, type IpFamily, type ObjectKey, type Protocol } from '../../api/objects.ts';
import { explain, explainFromOutside } from '../../policy/model/explain.ts';
import type { PolicyModel } from '../../policy/model/model.ts';
import type { BackendTraffic } from '../../proxier/kernel-rule.ts';
import type { InspectedService } from '../../proxier/route-table.ts';
import { loopbackAddress } from '../../services/node-port-addresses.ts';
import { type Route, vipsOf } from '../../services/route.ts';
import { BackgroundSlice } from '../../sync/precedence.ts';
import type { LocalDetector } from '../../traffic/options.ts';
import type { TraceAnswer } from '../api/trace.ts';
import { NotFound } from '../http/handler.ts';
import { BadParameter } from '../http/parameters.ts';
import type { StatusSources } from '../sources.ts';
import { endpointsWithoutSlice } from '../views/owned-ports.ts';
import type { FqdnSources } from '../views/policies.ts';
import { routeEndpoints, routeProblems } from '../views/services.ts';
import { type TraceSource, traceClient } from './client.ts';
import { computeTrace, type TraceContext, type TracedPath } from './compute.ts';
import type { PolicyCheck } from './policy-steps.ts';
import type { TraceRequest } from './question.ts';

/** What a trace reads of the agent. */
export type TraceSources = Pick<
  StatusSources,
  'table' | 'backends' | 'nodeAddresses' | 'nodeName'
> & {
  /** undefined without network policy. */
  readonly policy: { readonly model: PolicyModel; readonly names: FqdnSources } | undefined;
};

/** One connection of a request, in one IP family. */
export interface ResolvedTrace {
  readonly family: IpFamily;
  readonly source: TraceSource;
  readonly destination: string;
  readonly protocol: Protocol;
  readonly port: number;
  readonly sourcePort?: number | undefined;
  /** The Service, if the destination was named. */
  readonly service?: ObjectKey | undefined;
}

/** A `TraceAnswer` before rules of other programs are evaluated. */
export interface TracedAnswer extends Omit<TraceAnswer, 'paths'> {
  readonly paths: readonly TracedPath[];
}

/** @throws BadParameter, NotFound */
export async function computeAnswer(
  request: TraceRequest,
  sources: TraceSources,
): Promise<TracedAnswer> {
  const resolved = resolveRequest(request, sources);
  const paths: TracedPath[] = [];
  for (const each of resolved) paths.push((await prepareTrace(each, sources)).path);
  const { protocol, port } = resolved[0] ?? { protocol: 'TCP', port: 0 };
  return { from: request.from.text, to: request.to.text, protocol, port, paths };
}

/**
 * The connections of a request, at least one: one for each IP family that both ends have.
 * @throws BadParameter, NotFound
 */
export function resolveRequest(request: TraceRequest, sources: TraceSources): ResolvedTrace[] {
  const { to } = request;
  const isService = to.kind === 'object' || to.kind === 'service';
  const inspected = isService ? sources.table.inspect(to.key) : undefined;
  // An unknown object is named before a missing port, which may depend on it.
  const destinations = destinationsOf(request, inspected, sources);
  const ends = IP_FAMILIES.flatMap((family) => {
    const destination = destinations.find((address) => familyOf(address) === family);
    const source = sourceOf(request, family, sources);
    return destination === undefined || source === undefined
      ? []
      : [{ family, source, destination }];
  });
  const { protocol, port } = portOf(request, inspected);
  const { sourcePort } = request;
  const service = inspected?.service.key;
  const resolved = ends.map(
    (each): ResolvedTrace => ({ ...each, protocol, port, sourcePort, service }),
  );
  if (resolved.length > 0) return resolved;
  throw new BadParameter('to', 'has no address of an IP family that the source has');
}

/** A Service with one listed port needs no port. */
function portOf(
  { protocol, port }: TraceRequest,
  inspected: InspectedService | undefined,
): { protocol: Protocol; port: number } {
  if (port !== undefined) return { port, protocol: protocol ?? 'TCP' };
  const listed = inspected?.service.ports ?? [];
  const [only] = listed.filter((each) => each.protocol === (protocol ?? each.protocol));
  const isListed = inspected?.served.ports.every(({ match }) => match.kind === 'port') === true;
  if (only !== undefined && listed.length === 1 && isListed) return only;
  throw new BadParameter('port', 'is missing: only a Service with one port needs none');
}

/** The first of a family is traced. */
function destinationsOf(
  { from, to }: TraceRequest,
  inspected: InspectedService | undefined,
  { policy }: TraceSources,
): readonly string[] {
  if (to.kind === 'address') return [to.address];
  if (inspected !== undefined) {
    const { service, routes, addresses } = inspected;
    const externalIPs = service.externalIPs.filter((each) => addresses.includes(each));
    const external = [
      ...routes.flatMap(({ loadBalancerIPs }) => loadBalancerIPs),
      ...externalIPs,
      ...(routes.length > 0 ? [] : service.loadBalancerIngress.flatMap(({ ip }) => ip ?? [])),
    ];
    const all = [...routes.flatMap(vipsOf), ...service.clusterIPs, ...externalIPs];
    const vips = from.kind === 'external' ? [...external, ...all] : all;
    if (vips.length > 0) return vips;
    throw new BadParameter('to', `is Service ${to.key}, which has no address`);
  }
  const pod = to.kind === 'service' ? undefined : policy?.model.pod(to.key);
  if (pod !== undefined && pod.addresses.length > 0) return pod.addresses;
  throw new NotFound(`this agent knows ${unknownText(to.kind, to.key, policy !== undefined)}`);
}

/** @param kind as requested. */
function unknownText(kind: 'object' | 'service' | 'pod', key: string, knowsPods: boolean): string {
  if (kind === 'service') return `no Service ${key}`;
  const pods = knowsPods
    ? 'no pod of this name with an address'
    : 'pods only with --network-policy';
  const text = kind === 'pod' ? `no pod ${key}: ${pods}` : `no Service ${key}, and ${pods}`;
  const [namespace, name] = key.split('/');
  const isKind = namespace !== undefined && ['service', 'svc', 'pod'].includes(namespace);
  return isKind ? `${text}; name the namespace too: ${namespace}/NAMESPACE/${name}` : text;
}

/** @returns undefined if the source has no address of the family. */
function sourceOf(
  { from }: TraceRequest,
  family: IpFamily,
  { policy }: TraceSources,
): TraceSource | undefined {
  if (from.kind === 'address') return familyOf(from.address) === family ? from : undefined;
  if (from.kind !== 'pod') return from;
  const model = policy?.model;
  if (model === undefined) {
    throw new BadParameter(
      'from',
      'must be an address: this agent knows pods only with --network-policy',
    );
  }
  const pod = model.pod(from.key);
  if (pod === undefined) throw new NotFound(`this agent knows no pod ${from.key}`);
  const address = pod.addresses.find((each) => familyOf(each) === family);
  return address === undefined ? undefined : { kind: 'address', address };
}

/** How the backend of a family treats packets. @throws NotFound without a backend. */
function backendTraffic(
  family: IpFamily,
  { backends }: Pick<TraceSources, 'backends'>,
): BackendTraffic {
  const traffic = backends()
    .find((each) => each.family === family)
    ?.traffic?.();
  if (traffic !== undefined) return traffic;
  throw new NotFound(`this node does not serve ${family}, or the agent is still starting`);
}

/** The path of one connection, and what paths of other sources to its destination share with it. */
export interface PreparedTrace {
  readonly path: TracedPath;
  /** The path of a packet from a source that a live trace has seen. */
  pathFrom(address: string): TracedPath;
  /** Whether an address belongs to a pod, as far as the agent knows, or to this node. */
  isInside(address: string): boolean;
  /** Whether an address belongs to a pod of this node, as far as the agent knows. */
  isLocalPod(address: string): boolean;
  readonly localDetector: LocalDetector | undefined;
}

/** Computes one path. Yields to the event loop. @throws NotFound, BadParameter */
export async function prepareTrace(
  resolved: ResolvedTrace,
  sources: TraceSources,
): Promise<PreparedTrace> {
  const { family, destination, protocol, port, sourcePort } = resolved;
  const traffic = backendTraffic(family, sources);
  const nodeAddresses = sources
    .nodeAddresses()
    .filter((address) => familyOf(address) === family && !isLoopback(address));
  const source = checkedSource(resolved, nodeAddresses);
  const found = await findServices({ ...resolved, source }, sources);
  const model = sources.policy?.model;
  const context: TraceContext = {
    routes: found.routes.map(({ route }) => route),
    nodeAddresses,
    traffic,
    udpRoutesOfOwner: (address) => sources.table.udpRoutesOfOwner(address),
    endpointsOf: (route) => {
      const owner = found.routes.find((each) => each.route === route);
      return owner === undefined ? [] : routeEndpoints(owner.inspected, route, sources.table);
    },
    withoutSlice: (route) => {
      const owner = found.routes.find((each) => each.route === route);
      return owner === undefined
        ? []
        : endpointsWithoutSlice(owner.inspected, route, sources.table);
    },
    problemsOf: (route) => {
      const owner = found.routes.find((each) => each.route === route);
      return owner === undefined ? [] : routeProblems(owner.inspected, route, sources.table);
    },
    refused: found.refused.map((inspected) => ({
      inspected,
      isNamed: inspected.service.key === resolved.service,
    })),
    nearClusterIP: found.nearClusterIP,
    policy: sources.policy && policyCheck(sources.policy, family, sources.nodeName),
  };
  const pathOf = (from: TraceSource): TracedPath => {
    const client = traceClient(from, {
      family,
      nodeName: sources.nodeName,
      nodeAddresses,
      detector: traffic.options.localDetector,
      podAt: (address) => model?.podAt(address),
      isLocalEndpoint: (address) => found.localEndpoints.has(address),
      vipOf: found.vipOfSource,
    });
    return computeTrace({ family, client, destination, protocol, port, sourcePort }, context);
  };
  const isLocalPod = (address: string) =>
    found.localEndpoints.has(address) || model?.podAt(address)?.nodeName === sources.nodeName;
  return {
    path: pathOf(source),
    pathFrom: (address) => pathOf({ kind: 'address', address }),
    isInside: (address) =>
      nodeAddresses.includes(address) ||
      isLoopback(address) ||
      isLocalPod(address) ||
      model?.podAt(address) !== undefined,
    isLocalPod,
    localDetector: traffic.options.localDetector,
  };
}

/** @returns the source, with the address that the kernel selects. @throws BadParameter */
function checkedSource(
  { family, source, destination }: ResolvedTrace,
  nodeAddresses: readonly string[],
): TraceSource {
  if (!isLoopback(destination)) return source;
  if (source.kind === 'node') return { kind: 'address', address: loopbackAddress(family) };
  if (source.kind === 'address' && nodeAddresses.includes(source.address)) return source;
  throw new BadParameter(
    'to',
    `must not be a loopback address (${destination}) unless the source is node: only a host itself sends to it`,
  );
}

/** Services to mention that ask for the destination and do not get it. */
const MAX_REFUSED = 5;

interface FoundServices {
  readonly routes: { readonly route: Route; readonly inspected: InspectedService }[];
  readonly refused: InspectedService[];
  /** Addresses of endpoints on this node. */
  readonly localEndpoints: Set<string>;
  nearClusterIP: string | undefined;
  /** The Service whose VIP is the source. */
  vipOfSource: ObjectKey | undefined;
}

/** @throws BadParameter if the source is a cluster IP. */
async function findServices(
  { family, source, destination, port, service: named }: ResolvedTrace,
  { table, nodeName, nodeAddresses }: TraceSources,
): Promise<FoundServices> {
  const found: FoundServices = {
    ...{ routes: [], refused: [], localEndpoints: new Set() },
    ...{ nearClusterIP: undefined, vipOfSource: undefined },
  };
  const network = networkOf(destination);
  const isOfNodes = nodeAddresses().some((each) => cidrContains(network, each));
  const isForeign = source.kind === 'address' && !nodeAddresses().includes(source.address);
  const address = isForeign ? source.address : undefined;
  const slice = new BackgroundSlice();
  for (const key of [...table.serviceKeys]) {
    if (slice.isOver()) await slice.yield();
    // The Service may be gone after a yield.
    const inspected = table.inspect(key);
    if (inspected === undefined) continue;
    const routes = inspected.routes.filter((route) => route.family === family);
    const onVip = routes.filter((route) => vipsOf(route).includes(destination));
    const onNodePort = routes.filter((route) => route.nodePort === port && !onVip.includes(route));
    for (const route of [...onVip, ...onNodePort]) found.routes.push({ route, inspected });
    if (key === named) found.refused.unshift(inspected);
    else if (
      onVip.length === 0 &&
      found.refused.length < MAX_REFUSED &&
      asksFor(inspected, destination)
    )
      found.refused.push(inspected);
    if (!isOfNodes)
      found.nearClusterIP ??= inspected.service.clusterIPs.find((each) =>
        cidrContains(network, each),
      );
    if (address !== undefined && asksFor(inspected, address)) {
      refuseClusterIP(inspected, address);
      found.vipOfSource = key;
    }
    for (const { endpoints } of inspected.slices)
      for (const each of endpoints)
        if (each.nodeName === nodeName) found.localEndpoints.add(each.address);
  }
  return found;
}

/** No client has a cluster IP; a host may have another VIP. @throws BadParameter */
function refuseClusterIP({ service }: InspectedService, address: string): void {
  if (!service.clusterIPs.includes(address)) return;
  throw new BadParameter(
    'from',
    `must not be a cluster IP (${address}, of Service ${service.key}): use the address of a client, a pod, node, or external`,
  );
}

/** A part of the Service range if it has a cluster IP: most ranges are larger, and have no other addresses. */
function networkOf(address: string): string {
  return canonicalCidr(`${address}/${familyOf(address) === 'IPv4' ? 24 : 112}`) ?? address;
}

function asksFor({ service }: InspectedService, address: string): boolean {
  return (
    service.clusterIPs.includes(address) ||
    service.externalIPs.includes(address) ||
    service.loadBalancerIngress.some(({ ip }) => ip === address)
  );
}

function policyCheck(
  { model, names }: NonNullable<TraceSources['policy']>,
  family: IpFamily,
  nodeName: string,
): PolicyCheck {
  const one = (from: string, to: string, protocol: Protocol, port: number) => {
    // Other nodes inspect the DNS answers to their pods.
    const isLocal = model.podAt(from)?.nodeName === nodeName;
    return explain(model, {
      from: { address: from },
      to: { address: to },
      protocol,
      port,
      ...(isLocal ? { isFqdnAddress: names.hasPeer } : {}),
    }).find((each) => each.family === family);
  };
  return ({ from, seenAs, to, protocol, port }) => {
    const explained =
      from === undefined
        ? explainFromOutside(model, { to, protocol, port })
        : one(from, to, protocol, port);
    if (from === seenAs || seenAs === undefined || explained === undefined) return explained;
    const ingress = one(seenAs, to, protocol, port)?.ingress ?? explained.ingress;
    const isAllowed = explained.egress.verdict === 'allow' && ingress.verdict === 'allow';
    return { ...explained, ingress, verdict: isAllowed ? 'allow' : 'deny' };
  };
}
