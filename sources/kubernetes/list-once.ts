/** Lists a cluster's objects once, for commands that exit afterwards. */
import type { ApiObject } from '../../api/objects.ts';
import { type ClusterOptions, loadClusterConfig } from './config.ts';
import { ApiError } from './errors.ts';
import { InformerStore, type OnProblem } from './informer-store.ts';
import { expectList } from './lister.ts';
import type { Resource } from './resources.ts';
import { createOpenSession, type Session, type Timeouts } from './session.ts';

export interface ListOnceOptions extends ClusterOptions {
  readonly resources: readonly Resource[];
  /** Called for each object that cannot be read. Such an object is missing from the result. */
  readonly onProblem: OnProblem;
  readonly timeouts?: Timeouts;
}

/**
 * Lists all objects of the given resources, one resource after the other. Nothing is retried or
 * watched. An optional resource that is not installed counts as empty.
 * @throws ClusterConfigError, ApiError, ConnectionError, MalformedResponse
 */
export async function listOnce(options: ListOnceOptions): Promise<ApiObject[]> {
  const open = createOpenSession(await loadClusterConfig(options), options.timeouts);
  const session = await open(new AbortController().signal);
  try {
    const objects: ApiObject[] = [];
    for (const resource of options.resources) {
      objects.push(...(await listOf(session, resource, options.onProblem)));
    }
    return objects;
  } finally {
    session.close();
  }
}

async function listOf(
  session: Session,
  resource: Resource,
  onProblem: OnProblem,
): Promise<ApiObject[]> {
  for (const path of resource.paths) {
    try {
      return await listAt(session, path, resource, onProblem);
    } catch (error) {
      const isMissing = error instanceof ApiError && error.isNotFound;
      if (resource.optional !== true || !isMissing) throw error;
    }
  }
  return [];
}

async function listAt(
  session: Session,
  path: string,
  { kind, selectors }: Resource,
  onProblem: OnProblem,
): Promise<ApiObject[]> {
  const found: ApiObject[] = [];
  const sink = { upsert: (object: ApiObject) => found.push(object), remove() {}, synced() {} };
  const objects = new InformerStore({ kind, sink, onProblem });
  // Without a limit the server does not paginate.
  for await (const part of session.list(path, selectors)) {
    if ('item' in part) objects.putListItem(part.item);
    else expectList(kind, part.metadata);
  }
  return found;
}
