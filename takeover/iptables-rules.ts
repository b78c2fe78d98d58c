import { FIREWALL, isOwnChain, type Table } from '../iptables/chains.ts';
import { restoreInput, rulesInput } from '../iptables/restore.ts';

/** Chains that the kubelet keeps in table mangle. */
const KUBELET_CHAINS = /^:(KUBE-IPTABLES-HINT|KUBE-KUBELET-CANARY) /m;

/** Whether a kubelet uses this iptables, by the text of `iptables-save -t mangle`. */
export function hasKubelet(savedMangle: string): boolean {
  return KUBELET_CHAINS.test(savedMangle);
}

/**
 * Input for `iptables-restore --noflush` that removes every chain of Portwide and kube-proxy from a
 * table, and every rule that jumps to one.
 * @param saved output of `iptables-save -t TABLE`.
 * @param keepFirewall KUBE-FIREWALL, which a kubelet shares, stays.
 * @returns undefined when there is nothing to remove.
 */
export function cleanupInput(
  table: Table,
  saved: string,
  keepFirewall: boolean,
  chainsPerTransaction = Infinity,
): string | undefined {
  const isRemovable = (chain: string) => isOwnChain(chain) || (chain === FIREWALL && !keepFirewall);
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
  const removal = { table, write: new Map(), remove: chains, shared: [] };
  return (
    (jumps.length === 0 ? '' : rulesInput(table, jumps)) +
    restoreInput(removal, chainsPerTransaction)
  );
}
