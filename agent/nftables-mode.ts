/** Proxy mode nftables: node support, options and backends. */
import type { Logger } from 'pino';
import { familyOf } from '../api/addresses.ts';
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import type { NodeOptions, RunOptions } from '../config/settings.ts';
import { NfTables } from '../netlink/nftables/tables.ts';
import { listDevices, watchDevices } from '../netlink/route/devices.ts';
import { NftBackend, type NftBackendOptions } from '../nftables/backend.ts';
import { FlowtableDevices } from '../nftables/flowtable-devices.ts';
import { TABLE } from '../nftables/static-chains.ts';
import { UserError } from '../process/errors.ts';
import { type NodePortSelection, namesLoopback } from '../services/node-port-addresses.ts';
import { systemTimers } from '../sync/timers.ts';
import { disableUnneededRouteLocalnet } from '../takeover/route-localnet.ts';
import { trafficOptions } from '../traffic/options.ts';
import { flowtableFeature, flowtableProblem } from './flowtable-support.ts';
import type { SupportedMode } from './mode.ts';
import { type NftablesSupport, nftablesSupport } from './nftables-support.ts';
import { IPV6_DISABLED } from './node-setup.ts';

/**
 * Opens proxy mode nftables. Logs and omits an IP family that the node does not support.
 * @param support the node's support, if already known.
 * @throws UserError if no IP family is supported.
 */
export async function openNftablesMode(
  options: RunOptions,
  log: Logger,
  support?: NftablesSupport,
): Promise<SupportedMode> {
  const { families, missing, hashProblem } = support ?? (await nftablesSupport());
  if (families.length === 0) {
    const reasons = [...new Set(missing.values())].join('; ');
    throw new UserError(`--proxy-mode nftables does not work on this node: ${reasons}`);
  }
  for (const family of IP_FAMILIES) {
    if (families.includes(family)) continue;
    const reason = missing.get(family) ?? IPV6_DISABLED;
    log.warn({ family, reason }, 'nftables is not supported for this IP family; not serving it');
  }
  const flowtableReason = options.nftablesFlowtable ? await flowtableProblem(families) : undefined;
  if (flowtableReason !== undefined)
    log.warn(
      { reason: flowtableReason, effect: 'all packets take the rules' },
      'this node cannot use --nftables-flowtable',
    );
  const usesFlowtable = options.nftablesFlowtable && flowtableReason === undefined;
  const tables = new Map(families.map((family) => [family, new NfTables(family, TABLE)]));
  return {
    families,
    ...(hashProblem === undefined ? {} : { consistentHashProblem: hashProblem }),
    start: async (podCidrs, monitor, takeover) => {
      const backends = new Map<IpFamily, NftBackend>();
      const flowtable = usesFlowtable
        ? startDevices([...tables.values()], log, (reason) => {
            for (const backend of backends.values()) backend.onExternalChange(reason);
          })
        : undefined;
      for (const [family, table] of tables) {
        const onWarning: NftBackendOptions['onWarning'] = (message, fields) =>
          log.warn({ family, ...fields }, message);
        const familyOptions = {
          ...nftablesOptions(options, family, podCidrs, onWarning),
          usesFlowtable,
          flowtableDevices: flowtable?.devices,
        };
        backends.set(family, new NftBackend(table, familyOptions));
      }
      const reportLoaded = monitor.register({
        families,
        tables: [TABLE],
        onExternalChange: (family, change) => backends.get(family)?.onExternalChange(change),
        onWatchStarted: (family) => backends.get(family)?.watchStarted(),
        onMissedChanges: (family) => backends.get(family)?.missedChanges(),
        onWatchFailed: (err) =>
          log.warn(
            { err },
            'cannot subscribe to nf_tables notifications; falling back to periodic resync',
          ),
      });
      return {
        backends: [...backends.values()],
        minSyncPeriod: options.nftablesMinSyncPeriod,
        resetsTcp: options.resetDeletedEndpointConnections,
        localhostProxyFamilies: families.filter((family) => servesLocalhost(options, family)),
        features: () => [
          flowtableFeature(
            options.nftablesFlowtable,
            flowtableReason,
            flowtable?.devices.interfaces,
          ),
        ],
        ...(flowtable && { stop: flowtable.stop }),
        afterFirstSync: (family) => reportLoaded(family, takeover.afterFirstSync(family)),
      };
    },
  };
}

/** Watches the interfaces of the node for the flowtables. @throws NetlinkError */
function startDevices(
  tables: readonly NfTables[],
  log: Logger,
  onDeleted: (reason: string) => void,
): { readonly devices: FlowtableDevices; stop(): Promise<void> } {
  const devices = new FlowtableDevices({
    tables,
    listDevices,
    onWarning: (message, fields) => log.warn(fields, message),
    onDeleted,
    timers: systemTimers,
  });
  const watch = watchDevices(() => devices.request());
  return {
    devices,
    stop: async () => {
      await watch.close();
      await devices.stop();
    },
  };
}

/**
 * The setup of `--init-only` for this mode: resets route_localnet, which mode iptables sets for node ports on
 * 127.0.0.1. Later, when the agent removes the rules of mode iptables, it may lack the right to reset the sysctl.
 */
export async function prepareNftables(_options: RunOptions, log: Logger): Promise<void> {
  try {
    if (await disableUnneededRouteLocalnet())
      log.info({ reason: 'only mode iptables needs it' }, 'reset route_localnet to 0');
  } catch (error) {
    log.warn(
      { err: error },
      'cannot check for rules of mode iptables; route_localnet remains unchanged',
    );
  }
}

/** The options of mode nftables for an IP family. */
export function nftablesOptions(
  options: NodeOptions,
  family: IpFamily,
  podCidrs: readonly string[],
  onWarning: NftBackendOptions['onWarning'],
): NftBackendOptions {
  return {
    ...trafficOptions(options, family, podCidrs),
    masqueradeAll: options.masqueradeAll || options.nftablesMasqueradeAll,
    masqueradeBit: options.nftablesMasqueradeBit,
    rejectsOnLocalhost: servesLocalhost(options, family),
    nodePortSelection: nftablesNodePorts(options),
    serviceCidrs: options.serviceCidrs.filter((cidr) => familyOf(cidr) === family),
    usesFlowtable: options.nftablesFlowtable,
    onWarning,
  };
}

/** Whether a proxy serves node ports on localhost (KEP-6032). kube-proxy's gate is off by default, the agent's is on. */
function servesLocalhost(
  { nodeportAddresses, featureGates }: NodeOptions,
  family: IpFamily,
): boolean {
  const isOn = featureGates.KubeProxyNFTablesLocalhostNodePorts ?? true;
  return isOn && namesLoopback(nodeportAddresses, family);
}

/** The effective `--nodeport-addresses`: as in kube-proxy, the default in this mode is `primary`. */
export function nftablesNodePorts({ nodeportAddresses }: NodeOptions): NodePortSelection {
  return nodeportAddresses.length === 0 ? ['primary'] : nodeportAddresses;
}
