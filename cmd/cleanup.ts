import type { Command } from 'commander';
import { ExecaError } from 'execa';
import { removeDnsQueues } from '../agent/policy-names.ts';
import { IP_FAMILIES } from '../api/objects.ts';
import { IPVS_DEVICE } from '../api/vip-device.ts';
import { loadOrWarn } from '../config/configuration.ts';
import { addFlags, type FlagTexts } from '../config/flags.ts';
import { ALL_SETTINGS } from '../config/settings.ts';
import { VARIANTS } from '../iptables/commands.ts';
import { UserError } from '../process/errors.ts';
import { tryLock } from '../process/lock.ts';
import { requireNetAdmin } from '../process/rights.ts';
import { clearIpvs, deleteIpvsDevice, destroySets } from '../takeover/ipvs.ts';
import { removePolicyTables } from '../takeover/policy-tables.ts';
import {
  cleanTable,
  deleteServiceTables,
  iptablesCommand,
  iptablesTables,
} from '../takeover/removal.ts';

export function addCleanupCommand(program: Command): void {
  const { config, ipvsExcludeCidrs } = ALL_SETTINGS;
  const command = program
    .command('cleanup')
    .description('remove everything that Portwide or kube-proxy put on this node, in every mode');
  addFlags(command, { config, ipvsExcludeCidrs }).action(async (texts: FlagTexts) => {
    // Neither is ignored here: what it tells would be removed.
    if (texts.config !== undefined && texts.ipvsExcludeCidrs !== undefined) {
      throw new UserError('--config and --ipvs-exclude-cidrs exclude each other');
    }
    const { options } = await loadOrWarn(texts);
    await cleanupAndReport(options.ipvsExcludeCidrs);
  });
}

/**
 * Says on standard error what could not be removed, and has the process exit with 1 then.
 * @throws UserError when an agent runs on this node, or the process lacks CAP_NET_ADMIN.
 */
export async function cleanupAndReport(excludeCidrs: readonly string[]): Promise<void> {
  await requireNetAdmin('removing rules');
  // Held meanwhile, so that none starts either.
  const lock = await tryLock();
  if (lock === undefined) {
    throw new UserError(
      'an agent runs on this node and would write everything again; stop it first',
    );
  }
  const failures = await cleanup(excludeCidrs);
  lock.close();
  for (const failure of failures) process.stderr.write(`${failure}\n`);
  if (failures.length > 0) process.exitCode = 1;
}

/**
 * Removes rules, tables, sets, virtual servers and devices, whichever mode made them. The kubelet's
 * own chains stay. Goes on after a failure.
 * @returns what could not be removed, and why.
 */
async function cleanup(excludeCidrs: readonly string[]): Promise<string[]> {
  const failures: string[] = [];
  const attempt = async (what: string, action: () => Promise<unknown>) => {
    try {
      await action();
    } catch (error) {
      const isMissing = error instanceof ExecaError && error.code === 'ENOENT';
      failures.push(`${what}: not cleaned up: ${isMissing ? 'not installed' : messageOf(error)}`);
    }
  };
  // First, or VIPs on it would reach the node's own listeners while their rules go.
  await attempt(`device ${IPVS_DEVICE}`, () => deleteIpvsDevice(excludeCidrs));
  for (const family of IP_FAMILIES) {
    for (const variant of VARIANTS) {
      const command = iptablesCommand(family, variant);
      await attempt(command, async () => {
        for (const table of await iptablesTables(family, variant)) {
          await attempt(`${command}, table ${table}`, async () => {
            const { open } = await cleanTable(family, variant, table);
            if (open !== undefined) throw open;
          });
        }
      });
    }
    await attempt(`nf_tables, ${family}`, () => deleteServiceTables(family));
  }
  await attempt('network policy', removePolicyTables);
  await attempt('network policy, DNS', () => removeDnsQueues(IP_FAMILIES));
  await attempt('IPVS', () => clearIpvs(excludeCidrs));
  await attempt('ipset', destroySets);
  return failures;
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
