/**
 * Removes state of an agent with `--network-policy`: its tables, and the rules that queue DNS
 * packets.
 */
import { IP_FAMILIES } from '../api/objects.ts';
import { iptablesCommands, VARIANTS } from '../iptables/commands.ts';
import { iptablesTables } from '../iptables/variant.ts';
import { POLICY_TABLES } from '../policy/compile/policy-table.ts';
import { removeDnsRules } from '../policy/fqdn/dns-queue-rules.ts';
import type { CleanupAttempt } from './cleanup-attempt.ts';
import { deleteTables } from './nft-tables.ts';

/** Removes Portwide's network policy enforcement, which then denies no packet. */
export async function policyCleanup(attempt: CleanupAttempt): Promise<void> {
  let tables = 0;
  let hadQueues = false;
  await attempt.remove('network policy', async () => {
    tables = (await deleteTables(IP_FAMILIES, POLICY_TABLES)).length;
  });
  await attempt.remove('network policy, DNS', async () => {
    for (const family of IP_FAMILIES) {
      for (const variant of VARIANTS) {
        if (!(await iptablesTables(family, variant)).includes('mangle')) continue;
        if (await removeDnsRules(iptablesCommands(family, variant))) hadQueues = true;
      }
    }
  });
  if (tables > 0 || hadQueues) attempt.removed.push({ tables });
}
