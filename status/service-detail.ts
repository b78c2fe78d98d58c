/** Everything about one Service, for `GET /api/v1/services/{namespace}/{name}`. */
import { asError } from '../api/errors.ts';
import type { InspectedService } from '../proxier/route-table.ts';
import type { Problem } from './api/common.ts';
import type { KernelObject } from './api/kernel.ts';
import type { ServiceDetail } from './api/services.ts';
import { compareWithKernel } from './kernel-comparison.ts';
import type { StatusSources } from './sources.ts';
import {
  serviceEndpoints,
  serviceProblems,
  serviceRoutes,
  serviceSummary,
} from './views/services.ts';
import { timeText } from './views/text.ts';

const MAX_ENDPOINTS = 500;
const MAX_KERNEL_OBJECTS = 500;
const MAX_EVENTS = 20;

export async function serviceDetail(
  sources: StatusSources,
  inspected: InspectedService,
): Promise<ServiceDetail> {
  const { topology } = sources.table;
  const { service, slices, health } = inspected;
  const kernel = await kernelObjects(sources, inspected);
  const [check] = health;
  return {
    summary: serviceSummary(inspected, topology),
    objects: {
      uid: service.uid,
      annotation: service.portsAnnotation ?? null,
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
    endpoints: serviceEndpoints(inspected, topology).slice(0, MAX_ENDPOINTS),
    routes: serviceRoutes(inspected, sources.nodeAddresses()),
    problems: [...serviceProblems(inspected, topology), ...kernel.problems],
    kernel: kernel.objects.slice(0, MAX_KERNEL_OBJECTS),
    kernelTotal: kernel.objects.length,
    connections: null,
    healthCheck:
      check === undefined ? null : { port: check.port, localEndpoints: check.localEndpoints },
    events: sources.events
      .of({ kind: 'Service', namespace: service.namespace, name: service.name })
      .slice(0, MAX_EVENTS)
      .map(({ at, type, reason, message }) => ({ at: timeText(at), type, reason, message })),
  };
}

async function kernelObjects(
  sources: StatusSources,
  { service }: InspectedService,
): Promise<{ objects: readonly KernelObject[]; problems: readonly Problem[] }> {
  const problem = (reason: string, message: string): Problem => ({
    reason,
    message,
    object: `Service ${service.key}`,
    family: null,
  });
  try {
    const { objects, stable } = await compareWithKernel(sources, {
      family: undefined,
      service: service.key,
    });
    const wrong = objects.filter(({ state }) => state !== 'ok');
    if (wrong.length === 0 || !stable) return { objects, problems: [] };
    const [first] = wrong;
    const example = first?.desired ?? first?.actual ?? '';
    const message = `${wrong.length} of ${objects.length} objects in the kernel are not as they should be; the first is ${first?.state}: ${first?.in} ${example}`;
    return { objects, problems: [problem('KernelDiffers', message)] };
  } catch (error) {
    const message = `the kernel cannot be read: ${asError(error).message}`;
    return { objects: [], problems: [problem('KernelUnreadable', message)] };
  }
}
