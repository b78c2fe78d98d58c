import { InvalidObject } from '../../api/errors.ts';
import type { Service } from '../../api/objects.ts';
import { readService } from '../../api/read-service.ts';
import { type ClusterOptions, loadClusterConfig } from './config.ts';
import { MalformedAnswer } from './errors.ts';
import { createOpenSession, type Timeouts } from './session.ts';

export interface ListServicesOptions extends ClusterOptions {
  /** A Service that cannot be read, and is not in the list. */
  readonly onProblem: (problem: InvalidObject) => void;
  readonly timeouts?: Timeouts;
}

/**
 * All Services of a cluster as they are now, those of other proxies and headless ones too. Asks once:
 * nothing is tried again, and no watch follows.
 * @throws ClusterConfigError, ApiError, ConnectionError, MalformedAnswer
 */
export async function listServices(options: ListServicesOptions): Promise<Service[]> {
  const open = createOpenSession(await loadClusterConfig(options), options.timeouts);
  const { signal } = new AbortController();
  const session = await open(signal);
  try {
    const services: Service[] = [];
    // Without a limit there are no pages.
    for await (const part of session.list('/api/v1/services', {}, signal)) {
      if ('item' in part) services.push(...readable(part.item, options.onProblem));
      else if (part.metadata.kind !== 'ServiceList') {
        throw new MalformedAnswer(`API server: ${part.metadata.kind} is no ServiceList`);
      }
    }
    return services;
  } finally {
    session.close();
  }
}

function readable(item: unknown, onProblem: ListServicesOptions['onProblem']): Service[] {
  try {
    return [readService(item)];
  } catch (error) {
    if (!(error instanceof InvalidObject)) throw error;
    onProblem(error);
    return [];
  }
}
