/** Objects for commands that read them once, and end. */
import type { ApiObject } from '../api/objects.ts';
import type { RunOptions } from '../config/settings.ts';
import { isFailure } from '../sources/kubernetes/errors.ts';
import { listOnce } from '../sources/kubernetes/list-once.ts';
import type { Resource } from '../sources/kubernetes/reflector.ts';
import { loadManifestDirectory } from '../sources/manifests/directory.ts';
import { formatProblem } from '../sources/manifests/problem.ts';
import { UserError } from './errors.ts';

/**
 * All objects of some resources, from a directory of manifests or from a cluster.
 * @param note is told of those that cannot be read.
 * @throws ManifestDirectoryError, ClusterConfigError, UserError
 */
export async function readOnce(
  { manifests, kubeconfig, master }: RunOptions,
  resources: readonly Resource[],
  note: (line: string) => void,
): Promise<ApiObject[]> {
  if (manifests !== undefined) {
    const kinds = resources.map(({ kind }) => kind);
    const { objects, problems } = loadManifestDirectory(manifests, kinds);
    for (const problem of problems) note(formatProblem(problem));
    return objects.map(({ object }) => object);
  }
  try {
    const onProblem = ({ message }: Error) => note(message);
    return await listOnce({ kubeconfig, master, resources, onProblem });
  } catch (error) {
    if (!isFailure(error)) throw error;
    throw new UserError(error.message, { cause: error });
  }
}
