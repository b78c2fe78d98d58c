import { cidrContains, familyOf, isLoopback } from '../api/addresses.ts';
import type { ApplyReport, Backend, NodeFacts } from '../proxier/backend.ts';
import type { Route } from '../services/route.ts';
import type { BaseOptions } from './base-rules.ts';
import { type Iptables, IptablesError } from './commands.ts';
import { DEPTH } from './compile.ts';
import { checkInput, isEmpty, NFT_CHAINS_PER_TRANSACTION, restorePieces } from './restore.ts';
import { Ruleset, TABLES, type TableChange } from './ruleset.ts';

/** Options that hold for the life of the agent; the rest are facts about the node. */
export interface IptablesOptions extends Omit<BaseOptions, 'nodeAddresses' | 'nodePortAddresses'> {
  /** Addresses on which node ports are served: all, those in the CIDRs, the Node object's first. */
  readonly nodePortSelection: 'all' | 'primary' | readonly string[];
  /** Told of a chain that could not be removed: something that is not ours still jumps to it. */
  readonly onWarning: (message: string) => void;
}

/** Options for a ruleset, from what is configured and what the node is like. */
export function baseOptions(options: IptablesOptions, facts: NodeFacts): BaseOptions {
  return {
    ...options,
    nodeAddresses: facts.addresses,
    nodePortAddresses: nodePortAddresses(options, facts),
  };
}

/** As kube-proxy's NodePortAddresses reads the flag. */
function nodePortAddresses(
  { nodePortSelection: selection, family, localhostNodePorts }: IptablesOptions,
  { addresses, primary }: NodeFacts,
): 'all' | readonly string[] {
  if (selection === 'all') return 'all';
  if (selection === 'primary') return primary === undefined ? [] : [primary];
  const cidrs = selection.filter((cidr) => familyOf(cidr) === family);
  // A family that is not mentioned is not restricted.
  if (cidrs.length === 0 || cidrs.some((cidr) => cidr.endsWith('/0'))) return 'all';
  // The kernel routes nothing from [::1] to elsewhere.
  const loopback = family === 'IPv4' && localhostNodePorts;
  return addresses.filter(
    (address) =>
      cidrs.some((cidr) => cidrContains(cidr, address)) && (loopback || !isLoopback(address)),
  );
}

/** The iptables mode in one family: hands Routes to a `Ruleset` and its changes to the commands. */
export function iptablesBackend(iptables: Iptables, options: IptablesOptions): Backend {
  const ruleset = new Ruleset(baseOptions(options, { addresses: [], primary: undefined }));
  const perTransaction = iptables.variant === 'nft' ? NFT_CHAINS_PER_TRANSACTION : Infinity;

  const write = async (change: TableChange): Promise<number> => {
    if (isEmpty(change)) return 0;
    await iptables.restore(restorePieces(change, perTransaction));
    ruleset.markWritten(change);
    return change.write.size + change.remove.length + change.shared.length;
  };

  // A rule of somebody else that jumps to a chain of ours keeps it from being removed. That must
  // not keep everything else from being written, nor other chains from being removed.
  const writeTolerant = async (change: TableChange): Promise<number> => {
    try {
      return await write(change);
    } catch (error) {
      const left = blockedRemovals(error, change.remove);
      if (left.length === 0) throw error;
      options.onWarning(`table ${change.table} keeps ${left.join(', ')}: ${String(error)}`);
      // Until the next comparison with the kernel.
      ruleset.markWritten({ ...change, write: new Map(), remove: left });
      const remove = change.remove.filter((name) => !left.includes(name));
      // Emptied all the same: it must not lead to pods that went, nor hold the chains it jumps to.
      const emptied = left.map((name) => [name, { text: '', depth: DEPTH.mark }] as const);
      const rest = { ...change, remove, write: new Map([...change.write, ...emptied]) };
      return await writeTolerant(rest);
    }
  };

  // All differences are taken at once: what is wanted may change while the kernel is read, and
  // filter must not be ahead of nat.
  const differences = async (): Promise<TableChange[]> => {
    const saved = await iptables.save();
    return [...saved].map(([table, rules]) => ruleset.difference(table, rules));
  };

  return {
    family: iptables.family,
    setFacts: (facts) => ruleset.setOptions(baseOptions(options, facts)),
    update: (upserts: Iterable<Route>, removals: Iterable<string>) =>
      ruleset.update(upserts, removals),
    async apply(full): Promise<ApplyReport> {
      const changes = full ? await differences() : ruleset.pending();
      let written = 0;
      // nat before filter: a Service that gets its first endpoint is translated before its reject
      // goes, so that no packet to the VIP leaves the node untranslated.
      for (const change of changes) {
        written += full ? await writeTolerant(change) : await write(change);
      }
      return { written };
    },
    intact: () => iptables.check(checkInput(TABLES, ruleset.shared())),
  };
}

/** The removals that a failed restore is to blame on: the one it names, or any. */
function blockedRemovals(error: unknown, removals: readonly string[]): readonly string[] {
  const line = error instanceof IptablesError ? error.line : undefined;
  if (line === undefined) return removals;
  return removals.filter((name) => line === `-X ${name}`);
}
