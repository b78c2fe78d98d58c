/** Mode iptables: this folder renders TrafficPlans as rules of iptables, and applies them. */
import type { ApplyReport, Backend } from '../proxier/backend.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import type { Route } from '../services/route.ts';
import { type NodePortOptions, nodePortAddresses } from '../traffic/options.ts';
import { type BaseOptions, iptablesStaticRules } from './base-rules.ts';
import type { Table } from './chains.ts';
import type { Iptables } from './commands.ts';
import { Ruleset, type TableChange } from './ruleset.ts';
import { rulesetWriter, writtenRuleCount } from './writer.ts';

/** Options that hold for the life of the agent; the rest are facts about the node. */
export interface IptablesOptions
  extends NodePortOptions,
    Omit<BaseOptions, 'nodeAddresses' | 'nodePortAddresses'> {
  /** Told of a chain that could not be removed: something that is not ours still jumps to it. */
  readonly onWarning: (message: string) => void;
}

/** Options for a ruleset, from what is configured and what the node is like. */
export function baseOptions(options: IptablesOptions, facts: NodeAddresses): BaseOptions {
  return {
    ...options,
    nodeAddresses: facts.addresses,
    nodePortAddresses: nodePortAddresses(options, facts, options.localhostNodePorts),
  };
}

/** The rules of the iptables mode, without a Route yet. */
export function iptablesRuleset(options: BaseOptions): Ruleset {
  return new Ruleset(options, iptablesStaticRules(options));
}

/** The iptables mode in one family: hands Routes to a `Ruleset` and its changes to the commands. */
export function iptablesBackend(iptables: Iptables, options: IptablesOptions): Backend {
  const ruleset = iptablesRuleset(baseOptions(options, { addresses: [], primary: [] }));
  const writer = rulesetWriter(iptables, ruleset, options.onWarning);
  return {
    family: iptables.family,
    setNodeAddresses: (facts) => {
      const base = baseOptions(options, facts);
      ruleset.setOptions(base, iptablesStaticRules(base));
    },
    update: (upserts: Iterable<Route>, removals: Iterable<string>) =>
      ruleset.update(upserts, removals),
    async apply(full): Promise<ApplyReport> {
      // Filter must not be ahead of nat: both come from one look at what is wanted.
      const changes = inWritingOrder(full ? await writer.diff() : ruleset.pending());
      let written = 0;
      const rulesWritten = new Map<string, number>();
      for (const change of changes) {
        written += full ? await writer.writeTolerant(change) : await writer.write(change);
        rulesWritten.set(change.table, writtenRuleCount(change));
      }
      return { written, rulesWritten };
    },
    findDrift: () => writer.findDrift(),
    stats: () => ({ rules: ruleset.ruleCounts }),
    close: async () => {},
  };
}

/**
 * nat before filter: a Service that gets its first endpoint is translated before its reject goes, so
 * that no packet to the VIP leaves the node untranslated. mangle last: of this mode it has the canary
 * alone, but mode ipvs has the marks of all-ports Services and the drops of source ranges there,
 * which packets need until nat translates them.
 *
 * Between nat and mangle, a packet to an all-ports VIP is translated by nat and still bears the Service's mark, by which
 * IPVS would translate it again: in OUTPUT, or in INPUT if the endpoint is the node itself. Where the connection is
 * masqueraded it does not, for KUBE-MARK-MASQ adds its bit, and IPVS looks for the whole mark. Processes of the node are
 * masqueraded if there is a local detector (`--cluster-cidr`). For others conntrack is told of the second endpoint
 * (ip_vs_update_conntrack), and TCP connections live, also when the marks are gone (seen on 6.1). Only a UDP flow that sends
 * twice in these milliseconds may lose answers, until the services of IPVS go.
 */
const WRITING_ORDER: readonly Table[] = ['nat', 'filter', 'mangle'];

function inWritingOrder(changes: readonly TableChange[]): TableChange[] {
  return changes.toSorted(
    (a, b) => WRITING_ORDER.indexOf(a.table) - WRITING_ORDER.indexOf(b.table),
  );
}
