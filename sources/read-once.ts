/** Reads objects once, for commands that exit afterwards. */
import type { ApiObject } from '../api/objects.ts';
import { UserError } from '../process/errors.ts';
import type { ClusterOptions } from './kubernetes/config.ts';
import { isApiServerFailure } from './kubernetes/errors.ts';
import { listOnce } from './kubernetes/list-once.ts';
import type { Resource } from './kubernetes/resources.ts';
import { loadManifestDirectory } from './manifests/directory.ts';
import { formatProblem } from './manifests/problem.ts';

/** The manifest directory or cluster to read from. */
interface Origin extends ClusterOptions {
  /** A manifest directory; undefined to read from a cluster. */
  readonly manifests: string | undefined;
}

/**
 * Reads all objects of the given resources from a manifest directory or a cluster.
 * @param report receives one line for each object that cannot be read.
 * @throws ManifestDirectoryError, ClusterConfigError; UserError if a request to the API server fails
 */
export async function readOnce(
  { manifests, kubeconfig, master }: Origin,
  resources: readonly Resource[],
  report: (line: string) => void,
): Promise<ApiObject[]> {
  if (manifests !== undefined) {
    const kinds = resources.map(({ kind }) => kind);
    const { objects, problems } = loadManifestDirectory(manifests, kinds);
    for (const problem of problems) report(formatProblem(problem));
    return objects.map(({ object }) => object);
  }
  try {
    const onProblem = ({ message }: Error) => report(message);
    return await listOnce({ kubeconfig, master, resources, onProblem });
  } catch (error) {
    if (!isApiServerFailure(error)) throw error;
    throw new UserError(error.message, { cause: error });
  }
}
