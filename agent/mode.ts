/** The proxy modes, and the selection of the mode for this node. */
import type { Logger } from 'pino';
import type { PortFeatures } from '../api/all-ports.ts';
import type { IpFamily } from '../api/objects.ts';
import type { ProxyMode } from '../config/node-settings.ts';
import type { RunOptions } from '../config/settings.ts';
import { IPTABLES_TRAFFIC } from '../iptables/backend.ts';
import { IPVS_TRAFFIC } from '../ipvs/plan.ts';
import type { NftMonitor } from '../nft/monitor.ts';
import { NFTABLES_TRAFFIC } from '../nftables/backend.ts';
import { UserError } from '../process/errors.ts';
import type { Backend } from '../proxier/backend.ts';
import type { ModeTraffic } from '../proxier/kernel-rule.ts';
import type { RangeLimit } from '../services/namespace-budget.ts';
import type { KernelFeature } from '../status/api/node-status.ts';
import type { Takeover } from '../takeover/takeover.ts';
import { openIptablesMode } from './iptables-mode.ts';
import { openIpvsMode, prepareIpvs } from './ipvs-mode.ts';
import { nftablesNodePorts, openNftablesMode, prepareNftables } from './nftables-mode.ts';
import { nftablesSupport } from './nftables-support.ts';
import { prepareLocalhostNodePorts } from './node-setup.ts';

/** A mode that the node supports. Nothing is programmed yet. */
export interface SupportedMode {
  /** IP families that this mode supports on this node. */
  readonly families: readonly IpFamily[];
  /** What the node lacks to select endpoints by a hash of the client. Absent if it lacks nothing, or if the mode never can. */
  readonly consistentHashProblem?: string;
  /**
   * @param monitor reports changes of nf_tables tables by other programs.
   * @param takeover removes the rules of other modes.
   */
  start(podCidrs: readonly string[], monitor: NftMonitor, takeover: Takeover): Promise<StartedMode>;
}

/** A proxy mode that can be given Routes. Nothing is programmed yet. */
export interface StartedMode {
  readonly backends: readonly Backend[];
  /** Minimum interval between syncs, in milliseconds. */
  readonly minSyncPeriod: number;
  /** Whether TCP connections to deleted endpoints are reset; see `StaleFlowTracker`. */
  readonly resetsTcp: boolean;
  /** Families in which a userspace proxy serves node ports on loopback addresses, because rules cannot. */
  readonly localhostProxyFamilies: readonly IpFamily[];
  /** See `FamilyProxierOptions`. The family counts as synced, and the node as ready, only after it. */
  afterFirstRules?(family: IpFamily): Promise<void>;
  /**
   * Must be called after the first sync of each family. Starts actions that are safe only then, such as the removal of
   * the rules of other modes.
   */
  afterFirstSync(family: IpFamily): void;
  /** Features of the kernel that only this mode uses, for the status API. */
  features?(): readonly KernelFeature[];
  /** Stops what the mode does apart from syncs. */
  stop?(): Promise<void>;
}

/** Why operators should look at the mode of a node: a Warning Event on the Node, a log line, a part of its status. */
export interface ModeWarning {
  /** The reason of the Event. */
  readonly reason: 'IPVSDeprecation' | 'ProxyModeFallback';
  readonly message: string;
}

/** Definition of a proxy mode. */
export interface ModeDefinition {
  readonly name: ProxyMode;
  readonly warning?: ModeWarning;
  /** Checks that the node supports the mode. @throws UserError that names what is missing. */
  open(options: RunOptions, log: Logger): Promise<SupportedMode>;
  /** Does the setup of `--init-only`, which needs more than CAP_NET_ADMIN. @throws UserError */
  prepare(options: RunOptions, log: Logger): Promise<void>;
  /** Resync interval, in milliseconds. */
  syncPeriod(options: RunOptions): number;
  /** The effective `--nodeport-addresses` in this mode. */
  nodePortSelection(options: RunOptions): RunOptions['nodeportAddresses'];
  /** Whether the mode serves ports owned by pods: they need rewriting without connection tracking, which only nf_tables has. */
  readonly servesOwnedPorts: boolean;
  /** What the Services of a namespace may have; absent: the default of `rangeBudget`. */
  readonly rangeLimit?: (options: RunOptions) => RangeLimit;
  /** Whether the mode can select an endpoint by a hash of the client. */
  readonly servesConsistentHash: boolean;
  /** Whether the mode drops packets to addresses in Service CIDRs that no Service has. */
  readonly usesServiceCidrs: boolean;
  /** Whether the mode writes iptables rules. */
  readonly writesIptablesRules: boolean;
  /** How packets are treated in each IP family. */
  readonly traffic: ModeTraffic;
}

/** As many as one sync writes in less than 0.1 s: four VIPs with the most ranges. */
const IPTABLES_RANGES: RangeLimit = { max: 4096, unit: 'ranges' };
/** An ipset stores each port. Eight VIPs with all ports of a protocol, and 30 MiB. */
const IPSET_PORTS: RangeLimit = { max: 2 ** 19, unit: 'ports' };

const MODES: Readonly<Record<ProxyMode, ModeDefinition>> = {
  nftables: {
    name: 'nftables',
    open: openNftablesMode,
    prepare: prepareNftables,
    syncPeriod: (options) => options.nftablesSyncPeriod,
    nodePortSelection: nftablesNodePorts,
    servesOwnedPorts: true,
    servesConsistentHash: true,
    usesServiceCidrs: true,
    writesIptablesRules: false,
    traffic: NFTABLES_TRAFFIC,
  },
  iptables: {
    name: 'iptables',
    open: openIptablesMode,
    prepare: prepareLocalhostNodePorts,
    syncPeriod: (options) => options.iptablesSyncPeriod,
    nodePortSelection: (options) => options.nodeportAddresses,
    servesOwnedPorts: false,
    rangeLimit: () => IPTABLES_RANGES,
    servesConsistentHash: false,
    usesServiceCidrs: false,
    writesIptablesRules: true,
    traffic: IPTABLES_TRAFFIC,
  },
  ipvs: {
    name: 'ipvs',
    // As in kube-proxy since 1.35 (KEP-5495).
    warning: {
      reason: 'IPVSDeprecation',
      message:
        'mode ipvs is deprecated: kube-proxy disables its mode ipvs by default in Kubernetes 1.40 and removes it in 1.43; migrate to mode nftables',
    },
    open: openIpvsMode,
    prepare: prepareIpvs,
    syncPeriod: (options) => options.ipvsSyncPeriod,
    nodePortSelection: (options) => options.nodeportAddresses,
    servesOwnedPorts: false,
    rangeLimit: ({ ipvsAllPorts }) => (ipvsAllPorts === 'iptables' ? IPTABLES_RANGES : IPSET_PORTS),
    servesConsistentHash: false,
    usesServiceCidrs: false,
    writesIptablesRules: true,
    traffic: IPVS_TRAFFIC,
  },
};

/** The effective `--nodeport-addresses` in a mode. */
export function nodePortSelectionOf(
  mode: ProxyMode,
  options: RunOptions,
): RunOptions['nodeportAddresses'] {
  return MODES[mode].nodePortSelection(options);
}

/** What a mode cannot serve. */
export function modeLimits(
  mode: ProxyMode,
): Pick<PortFeatures, 'modeWithoutOwnedPorts' | 'consistentHashProblem'> {
  const { servesOwnedPorts, servesConsistentHash } = MODES[mode];
  return {
    modeWithoutOwnedPorts: servesOwnedPorts ? undefined : mode,
    consistentHashProblem: servesConsistentHash
      ? undefined
      : `mode ${mode} cannot hash clients; use mode nftables`,
  };
}

/** The mode if `--proxy-mode` is unset, where the node's support is not checked (`portwide render`). */
export const DEFAULT_PROXY_MODE: ProxyMode = 'nftables';

const SELECTED = 'selected the proxy mode, because --proxy-mode is unset';

/**
 * Selects the proxy mode: `--proxy-mode` if set, regardless of what the node supports. Otherwise nftables if the
 * node supports it for all its IP families, else iptables. Then an error of `open` also says why not nftables.
 */
export async function pickMode({ proxyMode }: RunOptions, log: Logger): Promise<ModeDefinition> {
  if (proxyMode !== undefined) return MODES[proxyMode];
  const support = await nftablesSupport();
  if (support.missing.size === 0) {
    log.info({ mode: DEFAULT_PROXY_MODE, reason: 'the kernel supports it' }, SELECTED);
    return { ...MODES.nftables, open: (options) => openNftablesMode(options, log, support) };
  }
  const reason = `nftables is not supported: ${[...new Set(support.missing.values())].join('; ')}`;
  log.info({ mode: 'iptables', reason }, SELECTED);
  const message = `--proxy-mode is unset and ${reason}; --proxy-mode=iptables keeps this mode without a warning`;
  const open = async (...given: Parameters<ModeDefinition['open']>) => {
    try {
      return await openIptablesMode(...given);
    } catch (error) {
      throw error instanceof UserError ? new UserError(`${reason}; ${error.message}`) : error;
    }
  };
  return { ...MODES.iptables, open, warning: { reason: 'ProxyModeFallback', message } };
}
