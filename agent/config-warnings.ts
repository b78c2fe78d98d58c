/** Warnings about settings that may have unintended effects. */
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
  /** The effective `--nodeport-addresses` in this mode. */
  readonly nodePorts: RunOptions['nodeportAddresses'];
  readonly node: Node | undefined;
}

/** A log line about a setting. */
interface ConfigWarning {
  readonly message: string;
  /** The flag, and in parentheses the field of the configuration file. */
  readonly setting: string;
  readonly reason: string;
  readonly family?: IpFamily;
  readonly effect?: string;
  readonly hint?: string;
}

/**
 * The warnings of kube-proxy at its start (`checkBadConfig`, `getLocalDetectors`), under the same conditions: only
 * the primary family must be configured, unless other settings are dual-stack.
 */
export function configWarnings(given: ConfigWarningOptions): ConfigWarning[] {
  return [...nodePortWarnings(given), ...clusterCidrWarnings(given)];
}

/** Logs warnings about settings and sysctls of the node that affect Services. */
export async function warnOfSettings(objects: ObjectContext): Promise<void> {
  const { supportedMode, table, log } = objects;
  await warnOfBridge(supportedMode.families, log);
  for (const { message, ...details } of configWarnings({ ...objects, node: table.node })) {
    log.warn(details, message);
  }
}

const ALL_ADDRESSES = 'NodePort Services accept connections on all local addresses';

function nodePortWarnings({ options, nodePorts, node }: ConfigWarningOptions): ConfigWarning[] {
  const setting = '--nodeport-addresses (nodePortAddresses)';
  if (nodePorts.length === 0) {
    const hint = 'consider --nodeport-addresses=primary';
    return [{ message: ALL_ADDRESSES, setting, reason: 'unset', hint }];
  }
  const primary = primaryFamily(options, node);
  const lists = [options.clusterCidr, nodePorts, options.ipvsExcludeCidrs, node?.podCIDRs ?? []];
  const isDual = lists.some((list) => IP_FAMILIES.every((family) => mentions(list, family)));
  return IP_FAMILIES.filter((family) => !mentionsFamily(nodePorts, family))
    .filter((family) => isDual || family === primary)
    .map((family) => ({ message: ALL_ADDRESSES, setting, family, reason: `no ${family} CIDR` }));
}

function clusterCidrWarnings({ options, node }: ConfigWarningOptions): ConfigWarning[] {
  const { detectLocalMode, clusterCidr } = options;
  const family = primaryFamily(options, node);
  if (detectLocalMode !== 'ClusterCIDR' || mentions(clusterCidr, family)) return [];
  const isUnset = clusterCidr.length === 0;
  return [
    {
      message: 'connections to cluster IPs are not masqueraded',
      setting: '--cluster-cidr (clusterCIDR)',
      ...(isUnset ? {} : { family }),
      reason: isUnset
        ? 'unset, so local pods cannot be detected'
        : 'no CIDR of the primary IP family',
      effect: 'clients outside the cluster cannot use cluster IPs',
    },
  ];
}

function mentions(cidrs: readonly string[], family: IpFamily): boolean {
  return cidrs.some((cidr) => familyOf(cidr) === family);
}

/** The family of `--bind-address`, or else of the Node's first address, as in kube-proxy (`detectNodeIPs`). */
function primaryFamily(options: ConfigWarningOptions['options'], node: Node | undefined): IpFamily {
  const address = nodeIpOverride(options) ?? node?.addresses[0];
  return address === undefined ? 'IPv4' : familyOf(address);
}
