/** Checks of the iptables installation: variants with rules, and the xtables lock. */
import type { ProxyMode } from '../config/node-settings.ts';
import { type CheckResult, type Fact, fail, notSeen, ok, warn } from './result.ts';

/** Number of rules in tables filter and nat by variant. */
export type RuleCounts = Readonly<Record<'nft' | 'legacy', number>>;

/** Rules of both variants are in force, whichever variant the agent uses. */
export function checkVariants(counts: Fact<RuleCounts>): CheckResult[] {
  const name = 'iptables variants';
  if ('notSeen' in counts) return [notSeen(name, counts)];
  const { nft, legacy } = counts.value;
  const seen = `${nft} rules of iptables-nft, ${legacy} rules of iptables-legacy`;
  if (nft === 0 || legacy === 0) return [ok(name, seen)];
  const action =
    'use one variant for all programs of the node (update-alternatives --config iptables), and flush the other';
  return [warn(name, `${seen}: the kernel applies both`, action)];
}

/**
 * The lock that all iptables commands share.
 * @param problem why the file cannot be opened or created; undefined if it can.
 */
export function checkXtablesLock(
  problem: string | undefined,
  mode: ProxyMode | undefined,
): CheckResult[] {
  const name = 'xtables lock';
  if (problem === undefined) return [ok(name, '/run/xtables.lock can be opened')];
  const action = 'in a pod, mount /run/xtables.lock of the node (hostPath, FileOrCreate)';
  return mode === 'nftables'
    ? [warn(name, `${problem}; in mode nftables only the takeover runs iptables`, action)]
    : [fail(name, problem, action)];
}
