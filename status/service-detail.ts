/** Everything about one Service, for `GET /api/v1/services/{namespace}/{name}`. */
import { socketAddress } from '../api/addresses.ts';
import { asError } from '../api/errors.ts';
import type { ObjectKey } from '../api/objects.ts';
import type { InspectedService } from '../proxier/route-table.ts';
import type { Problem } from './api/common.ts';
import type { ServiceDetail } from './api/services.ts';
import type {
  ComparisonRequest,
  KernelComparison,
  KernelComparisons,
} from './kernel-comparison.ts';
import type { StatusSources } from './sources.ts';
import { ownedPorts } from './views/owned-ports.ts';
import {
  serviceEndpoints,
  serviceProblems,
  serviceRoutes,
  serviceSummary,
} from './views/services.ts';
import { timeText } from './views/text.ts';
import { unboundHealthPortProblem } from './views/unbound-health-port.ts';
import { unreadableProblem } from './views/unreadable.ts';
import { unsyncedReason } from './views/unsynced.ts';

const MAX_ENDPOINTS = 500;
const MAX_KERNEL_OBJECTS = 500;
const MAX_EVENTS = 20;
const MAX_FAULTS = 20;
const MAX_CONNECTIONS = 100;

export async function serviceDetail(
  sources: StatusSources,
  inspected: InspectedService,
  comparisons: KernelComparisons,
  request: ComparisonRequest,
): Promise<ServiceDetail> {
  const { table } = sources;
  const { service, slices, health } = inspected;
  const kernel = await kernelObjects(inspected, comparisons, request);
  const flows = await connections(sources, inspected);
  const [check] = health;
  return {
    summary: serviceSummary(inspected, table.topology),
    objects: {
      uid: service.uid,
      annotation: service.portsAnnotation ?? null,
      ownedPortsAnnotation: service.ownedPortsAnnotation ?? null,
      portsPerPodAnnotation: service.portsPerPodAnnotation ?? null,
      loadBalancingAnnotation: service.loadBalancingAnnotation ?? null,
      allPorts: service.allPorts ?? null,
      slices: slices.map(({ name, family, endpoints, ports }) => ({
        name,
        family,
        endpoints: endpoints.length,
        ports: ports.map(
          ({ name: port, protocol, port: number }) =>
            `${port === '' ? '' : `${port} `}${number ?? 'all'}/${protocol}`,
        ),
      })),
    },
    endpoints: serviceEndpoints(inspected, table).slice(0, MAX_ENDPOINTS),
    routes: serviceRoutes(inspected, sources.nodeAddresses()),
    ownedPorts: ownedPorts(inspected, table),
    problems: [
      ...unreadable(sources, service.key),
      ...unboundHealthPorts(sources, service.key),
      ...serviceProblems(inspected, table),
      ...kernel.problems,
      ...flows.problems,
    ],
    kernel: kernel.objects.slice(0, MAX_KERNEL_OBJECTS),
    kernelTotal: kernel.compared,
    kernelDifferent: kernel.different,
    kernelStable: kernel.stable,
    connections: flows.connections,
    healthCheck:
      check === undefined ? null : { port: check.port, localEndpoints: check.localEndpoints },
    events: sources.events
      .of({ kind: 'Service', namespace: service.namespace, name: service.name })
      .slice(0, MAX_EVENTS)
      .map(({ at, type, reason, message }) => ({ at: timeText(at), type, reason, message })),
  };
}

/** Why the latest version of a Service is not in force; empty if it is. */
function unreadable({ sourceFaults }: StatusSources, key: ObjectKey): Problem[] {
  const problems: Problem[] = [];
  for (const fault of sourceFaults()) {
    if (fault.object === `Service ${key}` && problems.length < MAX_FAULTS)
      problems.push(unreadableProblem(fault));
  }
  return problems;
}

function unboundHealthPorts({ unboundHealthPorts }: StatusSources, key: ObjectKey): Problem[] {
  return [...unboundHealthPorts()]
    .filter(({ serviceKey }) => serviceKey === key)
    .slice(0, MAX_FAULTS)
    .map(unboundHealthPortProblem);
}

function problemOf({ service }: InspectedService) {
  return (reason: string, message: string): Problem => ({
    reason,
    message,
    object: `Service ${service.key}`,
    family: null,
  });
}

async function connections(
  { traffic }: StatusSources,
  inspected: InspectedService,
): Promise<Pick<ServiceDetail, 'connections'> & { problems: readonly Problem[] }> {
  const problem = problemOf(inspected);
  try {
    const found = await traffic.connections(inspected.service.key, MAX_CONNECTIONS);
    // A TCP connection that ends by itself is no problem.
    const stale = found.entries.filter(
      ({ stale, state }) => stale && (state === null || state === 'ESTABLISHED'),
    );
    const [first] = stale;
    if (first === undefined) return { connections: found, problems: [] };
    const lead = stale.length === 1 ? '1 connection leads' : `${stale.length} connections lead`;
    const message = `${lead} to an endpoint that does not serve the Service any longer; the first is ${first.protocol} from ${socketAddress(first.source, first.sourcePort)} to ${socketAddress(first.endpoint, first.endpointPort)}`;
    return { connections: found, problems: [problem('StaleConnections', message)] };
  } catch (error) {
    const message = `conntrack cannot be read: ${asError(error).message}`;
    return { connections: null, problems: [problem('ConntrackUnreadable', message)] };
  }
}

type KernelObjects = Pick<KernelComparison, 'objects' | 'compared' | 'different' | 'stable'> & {
  readonly problems: readonly Problem[];
};

async function kernelObjects(
  inspected: InspectedService,
  comparisons: KernelComparisons,
  request: ComparisonRequest,
): Promise<KernelObjects> {
  const problem = problemOf(inspected);
  try {
    const scope = { family: undefined, service: inspected.service.key };
    const comparison = await comparisons.compare(scope, request);
    const { objects, compared, different, unsynced } = comparison;
    const problems = unsynced.map((family) => ({
      ...problem('NotSynced', unsyncedReason(family)),
      family: family.family,
    }));
    const [first] = objects;
    if (different === 0 || first === undefined) return { ...comparison, problems };
    const example = first.desired ?? first.actual ?? '';
    const message = `${different} of ${compared} objects in the kernel are not as they should be; the first is ${first.state}: ${first.in} ${example}`;
    return { ...comparison, problems: [...problems, problem('KernelDiffers', message)] };
  } catch (error) {
    // The client has gone.
    request.signal.throwIfAborted();
    const message = `the kernel cannot be read: ${asError(error).message}`;
    const problems = [problem('KernelUnreadable', message)];
    return { objects: [], compared: 0, different: 0, stable: false, problems };
  }
}
