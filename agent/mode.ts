/** The proxy modes: which one this node gets, and what the agent asks of any. */
import type { Logger } from 'pino';
import type { IpFamily } from '../api/objects.ts';
import type { ProxyMode } from '../config/node-settings.ts';
import type { RunOptions } from '../config/settings.ts';
import { nftCommand } from '../nft/command.ts';
import type { NftMonitor } from '../nft/monitor.ts';
import type { Backend } from '../proxier/backend.ts';
import type { Takeover } from '../takeover/takeover.ts';
import { openIptablesMode } from './iptables-mode.ts';
import { openIpvsMode, prepareIpvs } from './ipvs-mode.ts';
import { nftablesNodePorts, openNftablesMode, prepareNftables } from './nftables-mode.ts';
import { nftablesSupport } from './nftables-support.ts';
import { prepareLocalhostNodePorts } from './node-setup.ts';

/** A mode that the node can do; nothing is programmed yet. */
export interface SupportedMode {
  /** Those that it can do them in. */
  readonly families: readonly IpFamily[];
  /**
   * @param monitor tells of what others do to tables of nf_tables.
   * @param takeover removes what other modes left.
   */
  start(podCidrs: readonly string[], monitor: NftMonitor, takeover: Takeover): Promise<StartedMode>;
}

/** A proxy mode, ready to be handed Routes; nothing is programmed yet. */
export interface StartedMode {
  readonly backends: readonly Backend[];
  /** Milliseconds. */
  readonly minSyncPeriod: number;
  /** Whether TCP connections to deleted endpoints are reset; see `FlowOwners`. */
  readonly resetsTcp: boolean;
  /** Families in which node ports are served on the loopback address by a proxy, for rules cannot. */
  readonly localhostProxyFamilies: readonly IpFamily[];
  /** What must not happen before the rules that make it safe. */
  afterFirstSync(family: IpFamily): void;
}

/** What is to be known of a mode. */
export interface ModeDefinition {
  readonly name: ProxyMode;
  /** @throws UserError with what the node lacks for the mode. */
  open(options: RunOptions, log: Logger): Promise<SupportedMode>;
  /** What it needs of the node that takes more rights than rules do (`--init-only`). @throws UserError */
  prepare(options: RunOptions, log: Logger): Promise<void>;
  /** Milliseconds between two looks at the kernel. */
  syncPeriod(options: RunOptions): number;
  /** What `--nodeport-addresses` means in it. */
  nodePortSelection(options: RunOptions): RunOptions['nodeportAddresses'];
}

const MODES: Readonly<Record<ProxyMode, ModeDefinition>> = {
  nftables: {
    name: 'nftables',
    open: openNftablesMode,
    prepare: prepareNftables,
    syncPeriod: (options) => options.nftablesSyncPeriod,
    nodePortSelection: nftablesNodePorts,
  },
  iptables: {
    name: 'iptables',
    open: openIptablesMode,
    prepare: prepareLocalhostNodePorts,
    syncPeriod: (options) => options.iptablesSyncPeriod,
    nodePortSelection: (options) => options.nodeportAddresses,
  },
  ipvs: {
    name: 'ipvs',
    open: openIpvsMode,
    prepare: prepareIpvs,
    syncPeriod: (options) => options.ipvsSyncPeriod,
    nodePortSelection: (options) => options.nodeportAddresses,
  },
};

/** What `--proxy-mode` stands for where nothing looks at a node. */
export const DEFAULT_PROXY_MODE: ProxyMode = 'nftables';

/**
 * Here, and here alone, a mode is picked: the one that was named, whatever the node can do; without
 * a name nftables, where it can be had for every family of the node, and iptables elsewhere.
 */
export async function pickMode({ proxyMode }: RunOptions, log: Logger): Promise<ModeDefinition> {
  if (proxyMode !== undefined) return MODES[proxyMode];
  const support = await nftablesSupport(nftCommand());
  if (support.missing.size === 0) {
    log.info(
      { mode: DEFAULT_PROXY_MODE },
      '--proxy-mode is unset: using nftables, which nft and the kernel support',
    );
    return { ...MODES.nftables, open: (options) => openNftablesMode(options, log, support) };
  }
  const reason = [...new Set(support.missing.values())].join('; ');
  log.info(
    { mode: 'iptables', reason },
    '--proxy-mode is unset: using iptables, because this node does not support nftables',
  );
  return MODES.iptables;
}
