/** Resolves a trace request to addresses, and computes its paths. Reads the agent's objects in time slices. */
import { canonicalCidr, cidrContains, familyOf, isLoopback } from '../../api/addresses.ts';
import { IP_FAMILIES, type IpFamily, type ObjectKey, type Protocol } from '../../api/objects.ts';
import { explain } from '../../policy/model/explain.ts';
import type { PolicyModel } from '../../policy/model/model.ts';
import type { BackendTraffic } from '../../proxier/kernel-rule.ts';
import type { InspectedService } from '../../proxier/route-table.ts';
import { type Route, vipsOf } from '../../services/route.ts';
import { BackgroundSlice } from '../../sync/precedence.ts';
import type { TraceAnswer } from '../api/trace.ts';
import { NotFound } from '../http/handler.ts';
import { BadParameter } from '../http/parameters.ts';
import type { StatusSources } from '../sources.ts';
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
  for (const each of resolved) paths.push(await computePath(each, sources));
  const { protocol, port } = resolved[0] ?? { protocol: 'TCP', port: 0 };
  return { from: request.from.text, to: request.to.text, protocol, port, paths };
}

/**
 * The connections of a request, at least one: one for each IP family that both ends have.
 * @throws BadParameter, NotFound
 */
export function resolveRequest(request: TraceRequest, sources: TraceSources): ResolvedTrace[] {
  const { to } = request;
  const inspected = to.kind === 'object' ? sources.table.inspect(to.key) : undefined;
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
  throw new BadParameter('port', 'is missing; only for a Service with a single port it may be');
}

/** The first of a family is traced. */
function destinationsOf(
  { from, to }: TraceRequest,
  inspected: InspectedService | undefined,
  { policy }: TraceSources,
): readonly string[] {
  if (to.kind === 'address') return [to.address];
  if (inspected !== undefined) {
    const { service, routes } = inspected;
    const external = [
      ...routes.flatMap(({ loadBalancerIPs }) => loadBalancerIPs),
      ...service.externalIPs,
      ...(routes.length > 0 ? [] : service.loadBalancerIngress.flatMap(({ ip }) => ip ?? [])),
    ];
    const all = [...routes.flatMap(vipsOf), ...service.clusterIPs, ...service.externalIPs];
    const vips = from.kind === 'external' ? [...external, ...all] : all;
    if (vips.length > 0) return vips;
    throw new BadParameter('to', `Service ${to.key} has no address`);
  }
  const pod = policy?.model.pod(to.key);
  if (pod !== undefined && pod.addresses.length > 0) return pod.addresses;
  const pods =
    policy === undefined
      ? 'and pods only with --network-policy'
      : 'and no pod of this name with an address';
  throw new NotFound(`this agent knows no Service ${to.key}, ${pods}`);
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
      'the agent knows pods only with --network-policy; use the address of the pod',
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

/** Computes one path. Yields to the event loop. @throws NotFound */
export async function computePath(
  resolved: ResolvedTrace,
  sources: TraceSources,
): Promise<TracedPath> {
  const { family, source, destination, protocol, port, sourcePort } = resolved;
  const traffic = backendTraffic(family, sources);
  const nodeAddresses = sources
    .nodeAddresses()
    .filter((address) => familyOf(address) === family && !isLoopback(address));
  const found = await findServices(resolved, sources);
  const model = sources.policy?.model;
  const client = traceClient(source, {
    family,
    nodeName: sources.nodeName,
    nodeAddresses,
    detector: traffic.options.localDetector,
    podAt: (address) => model?.podAt(address),
    isLocalEndpoint: () => found.isLocalEndpoint,
  });
  const context: TraceContext = {
    routes: found.routes.map(({ route }) => route),
    nodeAddresses,
    traffic,
    udpRoutesOfOwner: (address) => sources.table.udpRoutesOfOwner(address),
    endpointsOf: (route) => {
      const owner = found.routes.find((each) => each.route === route);
      return owner === undefined ? [] : routeEndpoints(owner.inspected, route, sources.table);
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
  return computeTrace({ family, client, destination, protocol, port, sourcePort }, context);
}

/** Services to mention that ask for the destination and do not get it. */
const MAX_REFUSED = 5;

interface FoundServices {
  readonly routes: { readonly route: Route; readonly inspected: InspectedService }[];
  readonly refused: InspectedService[];
  isLocalEndpoint: boolean;
  nearClusterIP: string | undefined;
}

async function findServices(
  { family, source, destination, port, service: named }: ResolvedTrace,
  { table, nodeName, nodeAddresses }: TraceSources,
): Promise<FoundServices> {
  const found: FoundServices = {
    ...{ routes: [], refused: [], isLocalEndpoint: false, nearClusterIP: undefined },
  };
  const network = networkOf(destination);
  const isOfNodes = nodeAddresses().some((each) => cidrContains(network, each));
  const address = source.kind === 'address' ? source.address : undefined;
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
    if (address !== undefined && hasLocalEndpoint(inspected, address, nodeName))
      found.isLocalEndpoint = true;
  }
  return found;
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

function hasLocalEndpoint(
  { slices }: InspectedService,
  address: string,
  nodeName: string,
): boolean {
  return slices.some(({ endpoints }) =>
    endpoints.some((each) => each.address === address && each.nodeName === nodeName),
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
    const explained = one(from, to, protocol, port);
    if (from === seenAs || explained === undefined) return explained;
    const ingress = one(seenAs, to, protocol, port)?.ingress ?? explained.ingress;
    const isAllowed = explained.egress.verdict === 'allow' && ingress.verdict === 'allow';
    return { ...explained, ingress, verdict: isAllowed ? 'allow' : 'deny' };
  };
}
