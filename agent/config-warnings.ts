/** Warnings about settings that may not be as they were meant. */
import { familyOf } from '../api/addresses.ts';
import { IP_FAMILIES, type IpFamily, type Node } from '../api/objects.ts';
import type { RunOptions } from '../config/settings.ts';
import { mentionsFamily } from '../services/node-port-addresses.ts';
import type { ObjectContext } from './context.ts';
import { nodeIpOverride, warnOfBridge } from './node-setup.ts';

export interface ConfigWarningOptions {
  readonly options: Pick<
    RunOptions,
    'detectLocalMode' | 'clusterCidr' | 'bindAddress' | 'ipvsExcludeCidrs'
  >;
  /** What `--nodeport-addresses` means in this mode. */
  readonly nodePorts: RunOptions['nodeportAddresses'];
  readonly node: Node | undefined;
}

/** A setting that may not be as it was meant. */
interface ConfigWarning {
  readonly setting: string;
  readonly message: string;
}

/**
 * What kube-proxy warns of at its start (`checkBadConfig`, `getLocalDetectors`), under its conditions: only
 * the primary family has to be configured, unless other settings speak of both.
 */
export function configWarnings(given: ConfigWarningOptions): ConfigWarning[] {
  return [...nodePortWarnings(given), ...clusterCidrWarnings(given)];
}

/** Logs what of the node and of the settings may keep Services from being served as meant. */
export async function warnOfSettings(objects: ObjectContext): Promise<void> {
  const { openMode, table, log } = objects;
  await warnOfBridge(openMode.families, log);
  for (const { setting, message } of configWarnings({ ...objects, node: table.node })) {
    log.warn({ setting }, `${setting} ${message}`);
  }
}

function nodePortWarnings({ options, nodePorts, node }: ConfigWarningOptions): ConfigWarning[] {
  const setting = '--nodeport-addresses (nodePortAddresses)';
  if (nodePorts.length === 0) {
    const message =
      'is unset: NodePort Services accept connections on all local addresses; consider --nodeport-addresses=primary';
    return [{ setting, message }];
  }
  const primary = primaryFamily(options, node);
  const lists = [options.clusterCidr, nodePorts, options.ipvsExcludeCidrs, node?.podCIDRs ?? []];
  const isDual = lists.some((list) => IP_FAMILIES.every((family) => mentions(list, family)));
  return IP_FAMILIES.filter((family) => !mentionsFamily(nodePorts, family))
    .filter((family) => isDual || family === primary)
    .map((family) => {
      const message = `has no ${family} CIDR: NodePort Services accept connections on all local ${family} addresses`;
      return { setting, message };
    });
}

function clusterCidrWarnings({ options, node }: ConfigWarningOptions): ConfigWarning[] {
  const { detectLocalMode, clusterCidr } = options;
  const family = primaryFamily(options, node);
  if (detectLocalMode !== 'ClusterCIDR' || mentions(clusterCidr, family)) return [];
  const message =
    clusterCidr.length === 0
      ? 'is unset: connections from pods cannot be told from others, so none to cluster IPs are masqueraded, and clients outside the cluster cannot use cluster IPs'
      : `has no ${family} CIDR, the primary family: ${family} connections to cluster IPs are not masqueraded, and clients outside the cluster cannot use those`;
  return [{ setting: '--cluster-cidr (clusterCIDR)', message }];
}

function mentions(cidrs: readonly string[], family: IpFamily): boolean {
  return cidrs.some((cidr) => familyOf(cidr) === family);
}

/** As kube-proxy (`detectNodeIPs`): that of `--bind-address`, else of the Node's first address. */
function primaryFamily(options: ConfigWarningOptions['options'], node: Node | undefined): IpFamily {
  const address = nodeIpOverride(options) ?? node?.addresses[0];
  return address === undefined ? 'IPv4' : familyOf(address);
}
