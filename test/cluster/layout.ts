/** Addresses, names and paths of a cluster. The network exists only inside its own namespaces. */
import { join } from 'node:path';

/** The machine itself, the namespaces of the control plane, or `node-<number>`. */
export type Host = 'machine' | 'control' | `node-${number}`;

export const CONTROL_ADDRESS = '10.89.0.1';
export const POD_CIDR = '10.88.0.0/16';
export const SERVICE_CIDR = '10.96.0.0/16';
/** Cluster IP of the Service `kubernetes`: the first of the range. */
export const KUBERNETES_ADDRESS = '10.96.0.1';
export const DNS_ADDRESS = '10.96.0.10';

export interface ClusterNode {
  readonly name: Host;
  readonly address: string;
  readonly podCidr: string;
}

export interface Layout {
  readonly id: string;
  /** Directory of everything but the report; removed at the end. */
  readonly directory: string;
  readonly nodes: readonly ClusterNode[];
  /** Directories of this cluster in the cgroup hierarchies: one, or with cgroup v1 one per controller. */
  readonly cgroups: readonly string[];
}

export function layOut(
  id: string,
  parent: string,
  nodes: number,
  cgroupMounts: readonly string[],
): Layout {
  return {
    id,
    directory: join(parent, `portwide-cluster-${id}`),
    nodes: Array.from({ length: nodes }, (_, index) => ({
      name: `node-${index + 1}` as const,
      address: `10.89.0.${11 + index}`,
      podCidr: `10.88.${1 + index}.0/24`,
    })),
    cgroups: cgroupMounts.map((mount) => join(mount, cgroupOf(id))),
  };
}

/** The cgroup of a cluster or of one node, relative to its hierarchy. */
export function cgroupOf(id: string, node = ''): string {
  return join('/', `portwide-cluster-${id}`, node);
}
