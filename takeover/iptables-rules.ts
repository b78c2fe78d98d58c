/** Removes iptables rules of modes iptables and ipvs, Portwide's or kube-proxy's. */
import type { IpFamily } from '../api/objects.ts';
import { FIREWALL, isOwnChain, type Table } from '../iptables/chains.ts';
import {
  IPTABLES_TIMEOUTS,
  iptablesCommand,
  isMissing,
  LOCK_WAIT,
  VARIANTS,
  type Variant,
} from '../iptables/commands.ts';
import { NFT_CHAINS_PER_TRANSACTION, restoreInput, rulesInput } from '../iptables/restore.ts';
import { type ChainNames, chainNames, savedTable } from '../iptables/variant.ts';
import { runProgram } from '../process/run-program.ts';
import type { CleanupStep } from './cleanup-attempt.ts';
import { MissingProgramError } from './missing-program.ts';
import { disableRouteLocalnet, hasOwnFirewall } from './route-localnet.ts';

/**
 * Removes all chains of Portwide and kube-proxy, and the jumps to them, in both variants. The
 * kubelet's chains stay. KUBE-FIREWALL stays too if a kubelet uses this variant, or if
 * route_localnet cannot be set to 0 (RouteLocalnetError). Runs iptables only if there is a chain to remove; if it is not
 * installed, the chains stay (MissingProgramError).
 */
export function iptablesCleanup(family: IpFamily): CleanupStep {
  return async (attempt) => {
    for (const variant of VARIANTS) {
      const command = iptablesCommand(family, variant);
      const tables: Table[] = [];
      await attempt.remove(command, async () => {
        const chains = await chainNames(family, variant);
        const kept: Table[] = [];
        let cause: unknown;
        for (const table of chains.keys()) {
          await attempt.remove(`${command}, table ${table}`, async () => {
            try {
              await cleanTable(family, variant, table, chains, () => tables.push(table));
            } catch (error) {
              if (!isMissing(error)) throw error;
              kept.push(table);
              cause = error;
            }
          });
        }
        if (kept.length > 0) throw new MissingProgramError(command, kept, { cause });
      });
      if (tables.length > 0) attempt.removed.push({ family, command, tables });
    }
  };
}

/**
 * Removes the chains of Portwide and kube-proxy from one table.
 * @param chains of all tables.
 * @param onRemoved called if rules were removed, even if KUBE-FIREWALL stays.
 * @throws RouteLocalnetError, ProgramTimeoutError; ProgramError with code ENOENT if the command
 * does not exist.
 */
async function cleanTable(
  family: IpFamily,
  variant: Variant,
  table: Table,
  chains: ChainNames,
  onRemoved: () => void,
): Promise<void> {
  const hasFirewall = hasOwnFirewall(chains, table);
  // KUBE-FIREWALL makes route_localnet safe (CVE-2020-8558), so set route_localnet to 0 before
  // removing the chain. IPv6 has no route_localnet.
  const localnetError = hasFirewall && family === 'IPv4' ? await disableRouteLocalnet() : undefined;
  const keepFirewall = !hasFirewall || localnetError !== undefined;
  if (chains.get(table)?.some((name) => isRemovable(name, keepFirewall)) === true) {
    const saved = await savedTable(family, variant, table);
    const perTransaction = variant === 'nft' ? NFT_CHAINS_PER_TRANSACTION : Infinity;
    const input = cleanupInput(table, saved, keepFirewall, perTransaction);
    // Another program may have removed the chains meanwhile.
    if (input !== undefined) {
      await runProgram(`${iptablesCommand(family, variant)}-restore`, ['--noflush', ...LOCK_WAIT], {
        input,
        timeout: IPTABLES_TIMEOUTS.write,
      });
      onRemoved();
    }
  }
  if (localnetError !== undefined) throw localnetError;
}

function isRemovable(chain: string, keepFirewall: boolean): boolean {
  return isOwnChain(chain) || (chain === FIREWALL && !keepFirewall);
}

/**
 * Input for `iptables-restore --noflush` that removes every chain of Portwide and kube-proxy from a
 * table, and every rule of other chains that jumps to a removed chain.
 * @param saved output of `iptables-save -t TABLE`.
 * @param keepFirewall keep KUBE-FIREWALL, because a kubelet or route_localnet=1 needs it.
 * @returns undefined if there is nothing to remove.
 */
export function cleanupInput(
  table: Table,
  saved: string,
  keepFirewall: boolean,
  chainsPerTransaction = Infinity,
): string | undefined {
  const chains: string[] = [];
  const jumps: string[] = [];
  for (const line of saved.split('\n')) {
    const chain = /^:(\S+)/.exec(line)?.[1];
    if (chain !== undefined && isRemovable(chain, keepFirewall)) chains.push(chain);
    const [, from, target] = /^-A (\S+) .*-[jg] (\S+)/.exec(line) ?? [];
    if (from === undefined || target === undefined) continue;
    if (isRemovable(target, keepFirewall) && !isRemovable(from, keepFirewall))
      jumps.push(line.replace('-A ', '-D '));
  }
  if (chains.length === 0 && jumps.length === 0) return undefined;
  const removal = { table, write: new Map(), remove: chains, shared: [] };
  return (
    (jumps.length === 0 ? '' : rulesInput(table, jumps)) +
    restoreInput(removal, chainsPerTransaction)
  );
}
