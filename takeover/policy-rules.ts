/**
 * Removes state of an agent with `--network-policy`: its tables, and the iptables rules with which earlier versions queued
 * DNS packets.
 */
import { IP_FAMILIES } from '../api/objects.ts';
import {
  type Iptables,
  iptablesCommand,
  iptablesCommands,
  isMissing,
  VARIANTS,
} from '../iptables/commands.ts';
import { chainNames } from '../iptables/variant.ts';
import { POLICY_TABLES } from '../policy/compile/policy-table.ts';
import type { CleanupAttempt } from './cleanup-attempt.ts';
import { MissingProgramError } from './missing-program.ts';
import { deleteTables } from './nft-tables.ts';

const DNS_CHAIN = 'PORTWIDE-DNS';

/** Removes Portwide's network policy enforcement, which then denies no packet. */
export async function policyCleanup(attempt: CleanupAttempt): Promise<void> {
  let tables = 0;
  await attempt.remove('network policy', async () => {
    tables = (await deleteTables(IP_FAMILIES, POLICY_TABLES)).length;
  });
  const hadRules = await removeDnsRules(attempt);
  if (tables > 0 || hadRules) attempt.removed.push({ tables });
}

/** Removes the iptables rules of earlier versions. They would queue the packets of all pods, and unchecked answers. */
export async function dnsRulesCleanup(attempt: CleanupAttempt): Promise<void> {
  if (await removeDnsRules(attempt)) attempt.removed.push({ chain: DNS_CHAIN });
}

/** @returns whether rules existed. */
async function removeDnsRules(attempt: CleanupAttempt): Promise<boolean> {
  let hadRules = false;
  await attempt.remove('network policy, DNS', async () => {
    let missing: MissingProgramError | undefined;
    for (const family of IP_FAMILIES) {
      for (const variant of VARIANTS) {
        const chains = await chainNames(family, variant);
        if (chains.get('mangle')?.includes(DNS_CHAIN) !== true) continue;
        try {
          await removeDnsChain(iptablesCommands(family, variant));
        } catch (cause) {
          if (!isMissing(cause)) throw cause;
          missing ??= new MissingProgramError(iptablesCommand(family, variant), ['mangle'], {
            cause,
          });
          continue;
        }
        hadRules = true;
      }
    }
    if (missing !== undefined) throw missing;
  });
  return hadRules;
}

async function removeDnsChain(iptables: Iptables): Promise<void> {
  const saved = (await iptables.saveTable('mangle')).split('\n');
  const removals = saved
    .filter((line) => line.endsWith(` -j ${DNS_CHAIN}`))
    .map((jump) => jump.replace('-A ', '-D '));
  // The declaration flushes the chain.
  const input = ['*mangle', `:${DNS_CHAIN} - [0:0]`, ...removals, `-X ${DNS_CHAIN}`, 'COMMIT', ''];
  await iptables.restore([input.join('\n')]);
}
