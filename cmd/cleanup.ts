import { readFile, writeFile } from 'node:fs/promises';
import type { Command } from 'commander';
import { ExecaError, execa } from 'execa';
import { addFlags, type FlagTexts } from '../config/flags.ts';
import { ALL_SETTINGS } from '../config/settings.ts';
import { FIREWALL, type Table } from '../iptables/chains.ts';
import { cleanupInput, hasKubelet } from '../iptables/cleanup.ts';
import { COMMAND_TIMEOUT, LOCK_WAIT, VARIANTS, type Variant } from '../iptables/commands.ts';
import { NFT_CHAINS_PER_TRANSACTION } from '../iptables/restore.ts';
import { TABLES } from '../iptables/ruleset.ts';
import { clearIpvs, deleteIpvsDevice, destroySets } from '../ipvs/cleanup.ts';
import { IPVS_DEVICE } from '../ipvs/kernel.ts';
import { loadOrWarn } from './configuration.ts';
import { UserError } from './errors.ts';
import { tryLock } from './lock.ts';

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
 * @throws UserError when an agent runs on this node.
 */
export async function cleanupAndReport(excludeCidrs: readonly string[]): Promise<void> {
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
  const attempt = async (what: string, action: () => Promise<void>, mayBeMissing = false) => {
    try {
      await action();
    } catch (error) {
      const isMissing = error instanceof ExecaError && error.code === 'ENOENT';
      if (isMissing && mayBeMissing) return;
      failures.push(`${what}: not cleaned up: ${isMissing ? 'not installed' : messageOf(error)}`);
    }
  };
  // First, or VIPs on it would reach the node's own listeners while their rules go.
  await attempt(`device ${IPVS_DEVICE}`, () => deleteIpvsDevice(excludeCidrs));
  for (const family of ['iptables', 'ip6tables']) {
    for (const variant of VARIANTS) {
      const command = `${family}-${variant}`;
      for (const table of TABLES) {
        await attempt(`${command}, table ${table}`, () => cleanTable(command, variant, table));
      }
    }
  }
  // Without nft on the node, it is unlikely that anything made tables with it.
  for (const family of ['ip', 'ip6']) {
    await attempt(`nft, ${family}`, () => deleteNftTable(family), true);
  }
  await attempt('IPVS', () => clearIpvs(excludeCidrs));
  await attempt('ipset', destroySets);
  return failures;
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

async function cleanTable(command: string, variant: Variant, table: Table): Promise<void> {
  const saved = await savedTable(command, table);
  const perTransaction = variant === 'nft' ? NFT_CHAINS_PER_TRANSACTION : Infinity;
  const clean = async (keepFirewall: boolean) => {
    const input = cleanupInput(table, saved, keepFirewall, perTransaction);
    if (input !== undefined) {
      await execa(`${command}-restore`, ['--noflush', ...LOCK_WAIT], {
        input,
        timeout: COMMAND_TIMEOUT,
      });
    }
  };
  const needsFirewall =
    hasKubelet(await savedTable(command, 'mangle')) || !saved.includes(`\n:${FIREWALL} `);
  if (needsFirewall) {
    await clean(true);
    return;
  }
  // KUBE-FIREWALL makes route_localnet safe (CVE-2020-8558): it goes when that is off.
  try {
    await closeLocalnet();
  } catch (error) {
    await clean(true);
    throw error;
  }
  await clean(false);
}

/** Empty for a table that does not exist: asking iptables-legacy for it would create it. */
async function savedTable(command: string, table: Table): Promise<string> {
  if (command.endsWith('-legacy') && !(await hasLegacyTable(command, table))) return '';
  const { stdout } = await execa(`${command}-save`, ['-t', table], { maxBuffer: 2 ** 30 });
  return stdout;
}

async function closeLocalnet(): Promise<void> {
  const file = '/proc/sys/net/ipv4/conf/all/route_localnet';
  if ((await readIfThere(file)).trim() === '1') await writeFile(file, '0');
}

async function hasLegacyTable(command: string, table: string): Promise<boolean> {
  const file = command.startsWith('ip6') ? 'ip6_tables_names' : 'ip_tables_names';
  return (await readIfThere(`/proc/net/${file}`)).split('\n').includes(table);
}

async function deleteNftTable(family: string): Promise<void> {
  // By name: listing a ruleset can trip over other owners' tables.
  const { exitCode } = await execa('nft', ['list', 'table', family, 'kube-proxy'], {
    reject: false,
    stdout: 'ignore',
  });
  if (exitCode === 0) await execa('nft', ['delete', 'table', family, 'kube-proxy']);
}

async function readIfThere(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return '';
    throw error;
  }
}
