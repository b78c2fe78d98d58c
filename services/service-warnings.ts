/** Warnings about valid Services and EndpointSlices: not used, or in conflict with ports of the node. */
import { compareText } from '../api/collections.ts';
import {
  type EndpointSlice,
  namespaceOf,
  type ObjectKey,
  type Protocol,
  type Service,
} from '../api/objects.ts';
import { SERVICE_NAME_FIELD } from '../api/read-endpointslice.ts';
import type { Candidate } from '../endpoints/select.ts';
import { type EndpointWithoutSlice, HOLDER_REASONS } from '../endpoints/slice-owners.ts';
import type { Route } from './route.ts';
import type { ServedPort } from './served-ports.ts';
import { vipFields } from './vip-requests.ts';

/** A problem with a Service or EndpointSlice, for logs and Events. */
export interface ServiceWarning {
  readonly serviceKey: ObjectKey;
  /** The EndpointSlice that the warning is about; undefined if it is about the Service. */
  readonly sliceKey?: ObjectKey;
  /** The warning depends on this node; agents on other nodes may not give this warning. */
  readonly isOfThisNode?: true;
  /** `field: problem; what to do`. Without a field if the problem is an endpoint. */
  readonly message: string;
}

/** A TCP port on which a program of the node listens, at least with a default configuration. */
export interface NodeListener {
  /** Such as `ssh`. */
  readonly name: string;
  readonly port: number;
  readonly isOnLoopbackOnly: boolean;
}

/** Maximum number of ports to list in a message. */
const MAX_LISTED_PORTS = 5;

/**
 * Warns of Services without a cluster IP, and of EndpointSlices that match no Service port. For manifests only, where
 * all objects are read together. An API server sends Services and EndpointSlices in any order, and assigns
 * cluster IPs itself.
 * @param service undefined if the Service does not exist.
 * @param served the served ports of the Service; empty if it does not exist.
 */
export function mismatchWarnings(
  serviceKey: ObjectKey,
  service: Service | undefined,
  slices: readonly EndpointSlice[],
  served: readonly ServedPort[],
): ServiceWarning[] {
  if (service === undefined) {
    const message = `${SERVICE_NAME_FIELD}: Service ${serviceKey} does not exist, so this slice is not used; correct the name or add the Service`;
    return slices.map(({ key: sliceKey }) => ({ serviceKey, sliceKey, message }));
  }
  if (!needsClusterIP(service)) return [];
  if (service.clusterIPs.length === 0) {
    const nodePorts =
      service.type === 'ClusterIP' ? '' : ', not even on its node ports and load balancer IPs';
    const message = `spec.clusterIPs: no cluster IP, so the Service is not served${nodePorts}; an API server assigns a cluster IP, but a manifest must set it`;
    return [{ serviceKey, message }];
  }
  // All-ports and port-range Services use every slice, whatever its ports.
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
  const expected = `${names.join(', ')}${ports.length > MAX_LISTED_PORTS ? ', …' : ''}`;
  const message = `ports: no numbered port matches name and protocol of a port of Service ${serviceKey} (${expected}), so this slice is not used; name the ports as in the Service`;
  return { serviceKey, sliceKey: slice.key, message };
}

/**
 * Warns of Service ports that hide a listener of the node, such as ssh. The Services are served nevertheless, as in
 * kube-proxy.
 * @param isLoopbackServed whether node ports are served on the loopback address.
 */
export function listenerWarnings(
  routes: Iterable<Route>,
  listeners: readonly NodeListener[],
  nodeAddresses: ReadonlySet<string>,
  isLoopbackServed: boolean,
): ServiceWarning[] {
  // The Routes of both families may give the same warning.
  const warnings = new Map<string, ServiceWarning>();
  const warn = (warning: ServiceWarning) => warnings.set(warning.message, warning);
  for (const route of routes) {
    const { match, serviceKey, nodePort } = route;
    if (match.kind !== 'port' || match.protocol !== 'TCP') continue;
    for (const { name, port, isOnLoopbackOnly } of listeners) {
      if (nodePort === port && (!isOnLoopbackOnly || isLoopbackServed)) {
        const message = `spec.ports.nodePort: ${port}/TCP is also the port of ${name} on nodes: the Service receives connections to it on node port addresses; use another node port`;
        warn({ serviceKey, message });
      }
      if (match.port !== port || isOnLoopbackOnly) continue;
      for (const [field, vip] of vipFields(route)) {
        if (!nodeAddresses.has(vip)) continue;
        const message = `${field}: ${vip} is an address of this node, and ${port}/TCP is the port of ${name} there: the Service receives connections to it; use another address or port`;
        warn({ serviceKey, isOfThisNode: true, message });
      }
    }
  }
  return [...warnings.values()];
}

/** Warns if this node is an endpoint of an all-ports Service: the VIP then exposes the node's ssh and kubelet. */
export function nodeEndpointWarnings(
  routes: Iterable<Route>,
  nodeAddresses: ReadonlySet<string>,
): ServiceWarning[] {
  return [...routes].flatMap(({ match, serviceKey, clusterEndpoints }) => {
    if (match.kind !== 'all') return [];
    const own = clusterEndpoints.find(({ address }) => nodeAddresses.has(address));
    if (own === undefined) return [];
    const message = `endpoint ${own.address} is this node, so all ports of the node are reachable through the VIP; use pods without hostNetwork`;
    return [{ serviceKey, isOfThisNode: true as const, message }];
  });
}

/** Why endpoints own no ports and what to do, by the reason. A name that is handed over is no problem. */
const OWNERSHIP_PROBLEMS: Readonly<Partial<Record<EndpointWithoutSlice['reason'], string>>> = {
  'has no ordinal in its name':
    'their pod names have no ordinal; use a StatefulSet, or set hostname to a name that ends in -0, -1 and so on',
  'has an ordinal past the last slice':
    'their ordinals are past the last slice; enlarge the range or lower the number of ports per pod',
  [HOLDER_REASONS.none]:
    'no Pod of their namespace has their address in status.podIPs; select pods of the namespace, and with --manifests add their Pods',
  [HOLDER_REASONS['host network']]: 'they are on the host network; use pods without hostNetwork',
  [HOLDER_REASONS.unknown]:
    'the Pods of their namespace cannot be listed; see the log, and let the agent list and watch pods',
};

/**
 * Warns of endpoints that own no ports, although pods own the ports of the Service, and of pods with different names
 * that have one ordinal. The messages name no endpoint and no number: each new message is a new Event, and each pod
 * of a rollout would cause one.
 * @param candidates returns the candidates of the served port; called only if endpoints have one ordinal.
 * @param others from `ownersOf`.
 */
export function ownershipWarnings(
  serviceKey: ObjectKey,
  candidates: () => readonly Candidate[],
  others: readonly EndpointWithoutSlice[],
): ServiceWarning[] {
  const reasons = [...new Set(others.map(({ reason }) => reason))];
  const withoutPorts = reasons.flatMap((reason): ServiceWarning[] => {
    const problem = OWNERSHIP_PROBLEMS[reason];
    if (problem === undefined) return [];
    const message = `endpoints own no ports, because ${problem}`;
    const isOfThisNode = reason === HOLDER_REASONS.unknown;
    return [{ serviceKey, message, ...(isOfThisNode && { isOfThisNode }) }];
  });
  const names = namesWithOneOrdinal(candidates, others);
  if (names.length === 0) return withoutPorts;
  const listed = names.slice(0, MAX_LISTED_PORTS).map((prefix) => `${prefix}N`);
  const all = `${listed.join(', ')}${names.length > listed.length ? ', …' : ''}`;
  const message = `pods with different names have the same ordinal N (${all}), and only one of them owns its ports; select the pods of one StatefulSet only`;
  return [...withoutPorts, { serviceKey, message }];
}

/** Names, up to the ordinal, of pods that have the same ordinal and different names; sorted. */
function namesWithOneOrdinal(
  candidates: () => readonly Candidate[],
  others: readonly EndpointWithoutSlice[],
): string[] {
  const shared = new Set(
    others
      .filter(({ reason }) => reason === 'has the ordinal of another endpoint')
      .map(({ ordinal }) => ordinal),
  );
  if (shared.size === 0) return [];
  const whateverOrdinal: readonly string[] = Object.values(HOLDER_REASONS);
  const excluded = new Set(
    others.filter(({ reason }) => whateverOrdinal.includes(reason)).map(({ address }) => address),
  );
  const byOrdinal = Map.groupBy(
    candidates().filter(({ ordinal, address }) => shared.has(ordinal) && !excluded.has(address)),
    ({ ordinal }) => ordinal,
  );
  const names = [...byOrdinal.values()]
    .map((all) => new Set(all.map(({ ordinalPrefix = '' }) => ordinalPrefix)))
    .filter(({ size }) => size > 1);
  return [...new Set(names.flatMap((prefixes) => [...prefixes]))].sort(compareText);
}

/**
 * Warns that pods own UDP ports by a Service with precedence too: they send from these ports as its VIP only.
 * @param winners these Services, each with its `winnerText`.
 */
export function speakerWarnings(
  serviceKey: ObjectKey,
  winners: ReadonlyMap<ObjectKey, string>,
): ServiceWarning[] {
  const inOrder = [...winners].sort(([a], [b]) => compareText(a, b));
  return inOrder.map(([, winner]) => {
    const message = `pods own the same UDP ports by ${winner}, and their packets leave as its VIP. Clients of Service ${serviceKey} get no answer on these ports; give the Services different ports or pods`;
    return { serviceKey, message };
  });
}

/** A node port of a Service that another Service has as a listed port on an address of this node. */
export interface TakenNodePort {
  readonly owner: ObjectKey;
  /** The Service that has the address. */
  readonly serviceKey: ObjectKey;
  /** The field that has the address. */
  readonly field: string;
  readonly vip: string;
  readonly protocol: Protocol;
  readonly port: number;
}

/**
 * Warns both Services. As in kube-proxy, the listed port is served. The owner gets no name of the other Service: a tenant may
 * create any number of Services, and each new message is a new Event.
 */
export function takenNodePortWarnings(
  serviceKey: ObjectKey,
  taken: readonly TakenNodePort[],
): ServiceWarning[] {
  const warnings = taken.map(({ owner, serviceKey: taker, field, vip, protocol, port }) =>
    owner === serviceKey
      ? `spec.ports.nodePort: ${port}/${protocol} on ${vip} leads to a Service of namespace ${namespaceOf(taker)} by its ${field}; use another node port, or ask the owner of the namespace to remove the address`
      : `${field}: ${vip} is an address of this node, and ${port}/${protocol} is the node port of another Service: this Service receives connections to it there; use another address or port`,
  );
  // Each node port of a Service may be taken, and both families may give the same warning.
  return [...new Set(warnings)].map((message) => ({ serviceKey, isOfThisNode: true, message }));
}

/**
 * Warns that Services of other namespaces request ports of a VIP that belong to this Service. One warning per VIP and
 * namespace, and without their names: a tenant may create any number of Services.
 */
export function contestWarnings(
  serviceKey: ObjectKey,
  contested: readonly { readonly vip: string; readonly namespace: string }[],
): ServiceWarning[] {
  return contested.map(({ vip, namespace }) => {
    const message = `${vip}: Services of namespace ${namespace} request ports of this VIP that belong to Service ${serviceKey}, and are refused; ask the owner of the namespace to remove the address`;
    return { serviceKey, message };
  });
}
