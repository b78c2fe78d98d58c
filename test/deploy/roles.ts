/** The requests that the ClusterRoles of deploy/ allow. */
import { readObject } from './manifests.ts';

interface Rule {
  readonly apiGroups: readonly string[];
  readonly resources: readonly string[];
  readonly verbs: readonly string[];
}

export const BASE_ROLE = 'deploy/base/rbac.yaml';
export const POLICY_ROLE = 'deploy/network-policy/rbac.yaml';

/** `verb group/resource` for every combination that the rules in the files allow. */
export function allowedRequests(...paths: readonly string[]): string[] {
  return paths
    .flatMap((path) => readObject<{ rules: readonly Rule[] }>(path, 'ClusterRole').rules)
    .flatMap(({ apiGroups, resources, verbs }) =>
      apiGroups.flatMap((group) =>
        resources.flatMap((resource) => verbs.map((verb) => `${verb} ${group}/${resource}`)),
      ),
    )
    .sort();
}
