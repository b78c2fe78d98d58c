/** The iptables proxy mode: renders TrafficPlans as iptables rules and applies them. */
import { isLoopback } from '../api/addresses.ts';
import type { Log } from '../process/log.ts';
import type { ApplyReport, Backend } from '../proxier/backend.ts';
import { ComparisonBuilder } from '../proxier/comparison.ts';
import type { ModeTraffic } from '../proxier/kernel-rule.ts';
import { SyncOverlap } from '../proxier/sync-overlap.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import type { Route } from '../services/route.ts';
import { type NodePortOptions, nodePortAddresses } from '../traffic/options.ts';
import { type BaseOptions, iptablesStaticRules } from './base-rules.ts';
import type { Table } from './chains.ts';
import type { Iptables } from './commands.ts';
import { describeIptablesRule } from './describe.ts';
import { Ruleset, type TableChange } from './ruleset.ts';
import { rulesetWriter, writtenRuleCount } from './writer.ts';

/** How mode iptables treats packets. */
export const IPTABLES_TRAFFIC: ModeTraffic = { forwardsWithIpvs: false, rejectsOtherPorts: 'none' };

/** Options that are fixed while the agent runs. Excludes the node's addresses, which may change. */
export interface IptablesOptions
  extends NodePortOptions,
    Omit<BaseOptions, 'nodeAddresses' | 'nodePortAddresses'> {
  /** Logs a chain that cannot be removed, because a rule of another program jumps to it. */
  readonly onWarning: Log['warn'];
}

/** Options for a ruleset, from the configuration and the node's addresses. */
export function baseOptions(options: IptablesOptions, nodeAddresses: NodeAddresses): BaseOptions {
  return {
    ...options,
    nodeAddresses: nodeAddresses.addresses,
    nodePortAddresses: nodePortAddresses(options, nodeAddresses, options.localhostNodePorts),
  };
}

/** The ruleset of the iptables mode, without Routes. */
export function iptablesRuleset(options: BaseOptions): Ruleset {
  return new Ruleset(options, iptablesStaticRules(options));
}

/**
 * The iptables backend of one family: passes Routes to a `Ruleset`, and its changes to the iptables
 * commands.
 */
export function iptablesBackend(iptables: Iptables, options: IptablesOptions): Backend {
  let nodeAddresses: NodeAddresses = { addresses: [], primary: [] };
  const ruleset = iptablesRuleset(baseOptions(options, nodeAddresses));
  const writer = rulesetWriter(iptables, ruleset, options.onWarning);
  const syncs = new SyncOverlap();
  let hasSynced = false;
  return {
    family: iptables.family,
    setNodeAddresses: (given) => {
      nodeAddresses = given;
      const base = baseOptions(options, nodeAddresses);
      ruleset.setOptions(base, iptablesStaticRules(base));
    },
    update: (upserts: Iterable<Route>, removals: Iterable<string>) =>
      ruleset.update(upserts, removals),
    apply: (full) =>
      syncs.run(async (): Promise<ApplyReport> => {
        // Take the changes of all tables at the same time: the rules in filter must not be newer than
        // the rules in nat.
        const changes = inWritingOrder(full ? await writer.diff() : ruleset.pendingChanges());
        let written = 0;
        const rulesWritten = new Map<string, number>();
        for (const change of changes) {
          written += full ? await writer.writeSkippingBlocked(change) : await writer.write(change);
          rulesWritten.set(change.table, writtenRuleCount(change));
        }
        hasSynced = true;
        return { written, rulesWritten };
      }),
    traffic: () => ({
      ...IPTABLES_TRAFFIC,
      options,
      isNodePortAddress: (address) => servesNodePorts(address, options, nodeAddresses),
      serviceCidrs: [],
    }),
    describeRule: (rule) => describeIptablesRule(rule, ruleset),
    untraceable: untraceableVariant(iptables),
    findDrift: () => writer.findDrift(),
    async compare(service, signal, namespace) {
      const result = new ComparisonBuilder(service, signal, namespace);
      const syncSpan = syncs.watch();
      // Before the first sync the kernel may have the rules of kube-proxy.
      if (hasSynced) await writer.compare(result);
      return result.result(syncSpan());
    },
    stats: () => ({ rules: ruleset.ruleCounts }),
    close: async () => {},
  };
}

/** Whether node ports are served on an address of the node, see `BaseOptions.nodePortAddresses`. */
function servesNodePorts(
  address: string,
  options: IptablesOptions,
  nodeAddresses: NodeAddresses,
): boolean {
  const served = nodePortAddresses(options, nodeAddresses, options.localhostNodePorts);
  if (served !== 'all') return served.includes(address);
  if (isLoopback(address)) return options.localhostNodePorts;
  return nodeAddresses.addresses.includes(address);
}

/** The kernel's trace of nf_tables does not show rules of iptables-legacy. Their trace goes to the kernel log. */
export function untraceableVariant({ variant }: Pick<Iptables, 'variant'>): string | undefined {
  if (variant === 'nft') return undefined;
  return 'the rules of this node are in iptables-legacy, and the kernel traces iptables-legacy to its log only; live tracing needs iptables-nft (--iptables-variant) or --proxy-mode=nftables';
}

/**
 * Order in which tables are written. nat comes before filter: when a Service gets its first
 * endpoint, its packets are translated before the reject rule is removed. So no packet to the VIP
 * leaves the node untranslated. mangle comes last. In mangle the iptables mode has only the canary.
 * During a takeover from mode ipvs, mangle still has the marks of all-ports Services and the drops
 * of source ranges. Packets need these rules until nat translates the packets.
 *
 * Between the writes of nat and mangle, a packet to an all-ports VIP is translated by nat and still
 * has the Service's mark. IPVS would translate it again by that mark: in OUTPUT, or in INPUT if the
 * endpoint is the node itself.
 *
 * - Masqueraded connections are not affected: KUBE-MARK-MASQ adds its bit, and IPVS compares the
 *   whole mark. Connections of processes on the node are masqueraded if there is a local detector
 *   (`--cluster-cidr`).
 * - For other connections, IPVS updates conntrack with the second endpoint
 *   (ip_vs_update_conntrack). TCP connections survive this update, and the later removal of the
 *   marks (seen on 6.1).
 * - A UDP flow that sends twice between the two writes may lose replies until the IPVS services are
 *   removed.
 */
const WRITING_ORDER: readonly Table[] = ['nat', 'filter', 'mangle'];

function inWritingOrder(changes: readonly TableChange[]): TableChange[] {
  return changes.toSorted(
    (a, b) => WRITING_ORDER.indexOf(a.table) - WRITING_ORDER.indexOf(b.table),
  );
}
