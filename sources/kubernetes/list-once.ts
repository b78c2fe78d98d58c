import { InvalidObject } from '../../api/errors.ts';
import type { ApiObject, Kind } from '../../api/objects.ts';
import { isRecord } from '../../api/read-field.ts';
import { asListed, readObject } from '../../api/read-object.ts';
import { type ClusterOptions, loadClusterConfig } from './config.ts';
import { ApiError, MalformedAnswer } from './errors.ts';
import type { Resource } from './reflector.ts';
import { createOpenSession, type Session, type Timeouts } from './session.ts';

export interface ListOnceOptions extends ClusterOptions {
  readonly resources: readonly Resource[];
  /** An object that cannot be read, and is not in the list. */
  readonly onProblem: (problem: InvalidObject) => void;
  readonly timeouts?: Timeouts;
}

/**
 * All objects of a cluster as they are now, resource by resource. Asks once: nothing is tried again, and
 * no watch follows. Of an optional resource that is not installed there are none.
 * @throws ClusterConfigError, ApiError, ConnectionError, MalformedAnswer
 */
export async function listOnce(options: ListOnceOptions): Promise<ApiObject[]> {
  const open = createOpenSession(await loadClusterConfig(options), options.timeouts);
  const { signal } = new AbortController();
  const session = await open(signal);
  try {
    const objects: ApiObject[] = [];
    for (const resource of options.resources) {
      objects.push(...(await listOf(session, resource, signal, options.onProblem)));
    }
    return objects;
  } finally {
    session.close();
  }
}

async function listOf(
  session: Session,
  resource: Resource,
  signal: AbortSignal,
  onProblem: ListOnceOptions['onProblem'],
): Promise<ApiObject[]> {
  for (const path of resource.paths) {
    try {
      return await listAt(session, path, resource, signal, onProblem);
    } catch (error) {
      const isMissing = error instanceof ApiError && error.isMissing;
      if (resource.optional !== true || !isMissing) throw error;
    }
  }
  return [];
}

async function listAt(
  session: Session,
  path: string,
  { kind, selectors }: Resource,
  signal: AbortSignal,
  onProblem: ListOnceOptions['onProblem'],
): Promise<ApiObject[]> {
  const objects: ApiObject[] = [];
  // Without a limit there are no pages.
  for await (const part of session.list(path, selectors, signal)) {
    if ('item' in part) objects.push(...readable(kind, part.item, onProblem));
    else if (part.metadata.kind !== `${kind}List`) {
      throw new MalformedAnswer(`API server: ${part.metadata.kind} is no ${kind}List`);
    }
  }
  return objects;
}

function readable(kind: Kind, item: unknown, onProblem: ListOnceOptions['onProblem']): ApiObject[] {
  try {
    if (!isRecord(item)) throw new InvalidObject(kind, 'items', 'must be objects');
    const object = readObject(asListed(kind, item), [kind]);
    return object === undefined ? [] : [object];
  } catch (error) {
    if (!(error instanceof InvalidObject)) throw error;
    onProblem(error);
    return [];
  }
}
