/** `--proxy-mode nftables`, from settings to backends. */
import type { Logger } from 'pino';
import { familyOf } from '../api/addresses.ts';
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import type { NodeOptions, RunOptions } from '../config/settings.ts';
import { NfTables } from '../netlink/nftables/tables.ts';
import { nftCommand } from '../nft/command.ts';
import { NftBackend, type NftBackendOptions } from '../nftables/backend.ts';
import { TABLE } from '../nftables/static-chains.ts';
import { UserError } from '../process/errors.ts';
import { type NodePortSelection, namesLoopback } from '../services/node-port-addresses.ts';
import { disableUnneededRouteLocalnet } from '../takeover/route-localnet.ts';
import { trafficOptions } from '../traffic/options.ts';
import type { SupportedMode } from './mode.ts';
import { type NftablesSupport, nftablesSupport } from './nftables-support.ts';
import { IPV6_DISABLED } from './node-setup.ts';

/**
 * `--proxy-mode nftables`. A family that the node cannot do is logged and left out.
 * @param support of the node, if somebody asked already.
 * @throws UserError when there is none.
 */
export async function openNftablesMode(
  options: RunOptions,
  log: Logger,
  support?: NftablesSupport,
): Promise<SupportedMode> {
  const nft = nftCommand();
  const { families, missing } = support ?? (await nftablesSupport(nft));
  if (families.length === 0) {
    const reasons = [...new Set(missing.values())].join('; ');
    throw new UserError(`--proxy-mode nftables does not work on this node: ${reasons}`);
  }
  for (const family of IP_FAMILIES) {
    if (families.includes(family)) continue;
    const reason = missing.get(family) ?? IPV6_DISABLED;
    log.warn({ family, reason }, 'no nftables for this family on this node; it is left out');
  }
  const tables = new Map(families.map((family) => [family, new NfTables(family, TABLE)]));
  return {
    families,
    start: async (podCidrs, monitor, takeover) => {
      const backends = new Map<IpFamily, NftBackend>();
      for (const [family, table] of tables) {
        const onWarning: NftBackendOptions['onWarning'] = (message, fields) =>
          log.warn({ family, ...fields }, message);
        const own = nftablesOptions(options, family, podCidrs, onWarning);
        backends.set(family, new NftBackend(table, nft, own));
      }
      const loaded = monitor.register({
        families,
        tables: [TABLE],
        onExternalChange: (family, what) => backends.get(family)?.onExternalChange(what),
        onWatchStarted: (family) => {
          const backend = backends.get(family);
          if (backend !== undefined) backend.watchesChanges = true;
        },
        onWatchFailed: (err) =>
          log.warn(
            { err },
            'cannot hear of changes of nf_tables; they are looked for now and then',
          ),
      });
      return {
        backends: [...backends.values()],
        minSyncPeriod: options.nftablesMinSyncPeriod,
        resetsTcp: options.resetDeletedEndpointConnections,
        localhostProxyFamilies: families.filter((family) =>
          namesLoopback(options.nodeportAddresses, family),
        ),
        afterFirstSync: (family) => loaded(family, takeover.afterFirstSync(family)),
      };
    },
  };
}

/**
 * What `--init-only` does for this mode: sets back a sysctl of mode iptables, which the agent may not be
 * allowed to when it removes that mode's rules. Node ports on 127.0.0.1 end with that mode.
 */
export async function prepareNftables(_options: RunOptions, log: Logger): Promise<void> {
  try {
    if (await disableUnneededRouteLocalnet())
      log.info('set route_localnet back to 0; only mode iptables needs it');
  } catch (error) {
    log.warn(
      { err: error },
      'cannot look for what mode iptables left; route_localnet stays as it is',
    );
  }
}

/** The nftables mode's options for one family, from the flags. */
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
    rejectsOnLocalhost: namesLoopback(options.nodeportAddresses, family),
    nodePortSelection: nftablesNodePorts(options),
    serviceCidrs: options.serviceCidrs.filter((cidr) => familyOf(cidr) === family),
    onWarning,
  };
}

/** As kube-proxy: in this mode, only the node's own address unless it is told. */
export function nftablesNodePorts({ nodeportAddresses }: NodeOptions): NodePortSelection {
  return nodeportAddresses.length === 0 ? ['primary'] : nodeportAddresses;
}
