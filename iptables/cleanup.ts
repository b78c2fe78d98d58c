import { isOwnChain, type Table } from './chains.ts';

/** Chains of kube-proxy's IPVS mode. */
const IPVS_CHAINS = new Set([
  'KUBE-NODE-PORT',
  'KUBE-LOAD-BALANCER',
  'KUBE-SOURCE-RANGES-FIREWALL',
  'KUBE-IPVS-FILTER',
  'KUBE-IPVS-OUT-FILTER',
]);

const isRemovable = (chain: string) => isOwnChain(chain) || IPVS_CHAINS.has(chain);

/**
 * Input for `iptables-restore --noflush` that removes every chain of Portwide and kube-proxy from a
 * table, and every rule that jumps to one.
 * @param saved output of `iptables-save -t TABLE`.
 * @returns undefined when there is nothing to remove.
 */
export function cleanupInput(table: Table, saved: string): string | undefined {
  const chains: string[] = [];
  const jumps: string[] = [];
  for (const line of saved.split('\n')) {
    const chain = /^:(\S+)/.exec(line)?.[1];
    if (chain !== undefined && isRemovable(chain)) chains.push(chain);
    const [, from, target] = /^-A (\S+) .*-[jg] (\S+)/.exec(line) ?? [];
    if (from === undefined || target === undefined) continue;
    if (isRemovable(target) && !isRemovable(from)) jumps.push(line.replace('-A ', '-D '));
  }
  if (chains.length === 0 && jumps.length === 0) return undefined;
  return [
    `*${table}`,
    ...chains.map((chain) => `:${chain} - [0:0]`),
    ...jumps,
    ...chains.map((chain) => `-X ${chain}`),
    'COMMIT',
    '',
  ].join('\n');
}
