import { InvalidObject } from '../../api/errors.ts';
import type { ApiObject, Kind } from '../../api/objects.ts';
import { isRecord } from '../../api/read-field.ts';
import { API_VERSIONS, readObject } from '../../api/read-object.ts';
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
  { kind, path, selectors, optional }: Resource,
  signal: AbortSignal,
  onProblem: ListOnceOptions['onProblem'],
): Promise<ApiObject[]> {
  const objects: ApiObject[] = [];
  try {
    // Without a limit there are no pages.
    for await (const part of session.list(path, selectors, signal)) {
      if ('item' in part) objects.push(...readable(kind, part.item, onProblem));
      else if (part.metadata.kind !== `${kind}List`) {
        throw new MalformedAnswer(`API server: ${part.metadata.kind} is no ${kind}List`);
      }
    }
  } catch (error) {
    if (!(optional === true && error instanceof ApiError && error.code === 404)) throw error;
  }
  return objects;
}

function readable(kind: Kind, item: unknown, onProblem: ListOnceOptions['onProblem']): ApiObject[] {
  // Items do not say what they are; the list does.
  const whole = isRecord(item) ? { ...item, kind, apiVersion: API_VERSIONS[kind] } : item;
  try {
    if (!isRecord(whole)) throw new InvalidObject(kind, 'items', 'must be objects');
    const object = readObject(whole, [kind]);
    return object === undefined ? [] : [object];
  } catch (error) {
    if (!(error instanceof InvalidObject)) throw error;
    onProblem(error);
    return [];
  }
}
