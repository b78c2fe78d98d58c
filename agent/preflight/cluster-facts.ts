/** Facts from the API server or the manifests, for `portwide check`. */
import type { RunOptions } from '../../config/settings.ts';
import type { ClusterObjects } from '../../preflight/cluster.ts';
import {
  accessOf,
  listServiceCidrs,
  type ReviewedAccess,
  reviewAccess,
} from '../../sources/kubernetes/access-review.ts';
import {
  ALL_PODS,
  SERVICE_CIDRS,
  servingAndPolicyResources,
  servingResources,
} from '../../sources/kubernetes/resources.ts';
import { readOnce } from '../../sources/read-once.ts';

/** Lists the objects once. @throws UserError */
export async function readObjects(options: RunOptions, nodeName: string): Promise<ClusterObjects> {
  const unreadable: string[] = [];
  const resources = servingResources(nodeName);
  const objects = await readOnce(options, resources, (line) => unreadable.push(line));
  const nodes = objects.flatMap((object) => (object.kind === 'Node' ? [object] : []));
  return {
    // Manifests may have several Nodes.
    node: nodes.find(({ name }) => name === nodeName),
    services: objects.flatMap((object) => (object.kind === 'Service' ? [object] : [])),
    slices: objects.flatMap((object) => (object.kind === 'EndpointSlice' ? [object] : [])),
    unreadable,
  };
}

/** Asks the API server for each request of the agent whether it is allowed. */
export function readAccess(options: RunOptions, nodeName: string): Promise<ReviewedAccess[]> {
  const resources = options.networkPolicy
    ? servingAndPolicyResources(nodeName)
    : [...servingResources(nodeName), ALL_PODS];
  return reviewAccess(options, accessOf([...resources, SERVICE_CIDRS]));
}

/** The CIDRs of ServiceCIDR objects. @throws Error with --manifests */
export async function readServiceRanges(options: RunOptions): Promise<string[]> {
  if (options.manifests !== undefined) throw new Error('--manifests is set');
  return listServiceCidrs(options);
}
