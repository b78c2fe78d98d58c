/** Taking away rules and tables of Portwide and kube-proxy, whoever of the two and whatever mode made them. */
import { readFile, writeFile } from 'node:fs/promises';
import type { IpFamily } from '../api/objects.ts';
import { FIREWALL, type Table } from '../iptables/chains.ts';
import { IPTABLES_TIMEOUTS, LOCK_WAIT, VARIANTS, type Variant } from '../iptables/commands.ts';
import { NFT_CHAINS_PER_TRANSACTION } from '../iptables/restore.ts';
import { TABLES } from '../iptables/ruleset.ts';
import { addressFamily } from '../netlink/core/address.ts';
import { UnsupportedError } from '../netlink/core/error.ts';
import { deleteTable, listTables, type NftTable } from '../netlink/nftables/tables.ts';
import { TABLE } from '../nftables/skeleton.ts';
import { runProgram } from '../process/run-program.ts';
import { cleanupInput, hasKubelet } from './iptables-rules.ts';

/** The table of kube-proxy's nftables mode. */
export const KUBE_PROXY_TABLE = 'kube-proxy';

/**
 * Deletes tables of nf_tables with all that is in them. By netlink: nft need not be there, and
 * would list what others have.
 * @returns the names of those that were there.
 * @throws NftRefusedError, NetlinkError
 */
export async function deleteServiceTables(
  family: IpFamily,
  names: readonly string[] = [TABLE, KUBE_PROXY_TABLE],
): Promise<string[]> {
  const found = (await tablesOf(family)).filter(({ name }) => names.includes(name));
  for (const table of found) await deleteTable(table);
  return found.map(({ name }) => name);
}

/** The tables in which a variant of iptables may have rules; to ask for others would create them. */
export async function iptablesTables(family: IpFamily, variant: Variant): Promise<Table[]> {
  const names =
    variant === 'nft'
      ? (await tablesOf(family)).map(({ name }) => name)
      : (await readIfThere(LEGACY_TABLES[family])).split('\n');
  return TABLES.filter((table) => names.includes(table));
}

const LEGACY_TABLES: Readonly<Record<IpFamily, string>> = {
  IPv4: '/proc/net/ip_tables_names',
  IPv6: '/proc/net/ip6_tables_names',
};

/** `iptables-nft` and the like. */
export function iptablesCommand(family: IpFamily, variant: Variant): string {
  return `${family === 'IPv4' ? 'iptables' : 'ip6tables'}-${variant}`;
}

/** route_localnet cannot be set back, as in a container that is not privileged. */
export class LocalnetOpenError extends Error {
  override readonly name = 'LocalnetOpenError';
  readonly sysctl = 'net.ipv4.conf.all.route_localnet';

  constructor(cause: Error) {
    super(
      `KUBE-FIREWALL stays and keeps neighbours from 127.0.0.0/8: net.ipv4.conf.all.route_localnet cannot be set back to 0: ${cause.message}`,
      { cause },
    );
  }
}

/** What came of cleaning a table. */
export interface CleanedTable {
  /** There was something to remove. */
  readonly isCleaned: boolean;
  /** Why KUBE-FIREWALL stays although it is not the kubelet's. */
  readonly open?: LocalnetOpenError;
}

/**
 * Removes all chains of Portwide and kube-proxy from a table that is there, and what jumps to them.
 * The kubelet's own stay, and so does KUBE-FIREWALL while there is a kubelet.
 * @throws ProgramTimeoutError; ExecaError, with the code ENOENT when there is no such command.
 */
export async function cleanTable(
  family: IpFamily,
  variant: Variant,
  table: Table,
): Promise<CleanedTable> {
  const command = iptablesCommand(family, variant);
  const saved = await savedTable(command, table);
  const perTransaction = variant === 'nft' ? NFT_CHAINS_PER_TRANSACTION : Infinity;
  const clean = async (keepFirewall: boolean): Promise<boolean> => {
    const input = cleanupInput(table, saved, keepFirewall, perTransaction);
    if (input === undefined) return false;
    await runProgram(`${command}-restore`, ['--noflush', ...LOCK_WAIT], {
      input,
      timeout: IPTABLES_TIMEOUTS.write,
    });
    return true;
  };
  if (!saved.includes(`\n:${FIREWALL} `) || (await isKubelets(family, variant))) {
    return { isCleaned: await clean(true) };
  }
  // KUBE-FIREWALL makes route_localnet safe (CVE-2020-8558): it goes when that is off. IPv6 has none.
  const open = family === 'IPv4' ? await closeLocalnet() : undefined;
  if (open !== undefined) return { isCleaned: await clean(true), open };
  return { isCleaned: await clean(false) };
}

/**
 * Sets route_localnet back, for a mode that does not serve node ports on 127.0.0.1, where the rules of
 * mode iptables guard it and the kubelet's do not. These go when the agent serves.
 * @returns whether it was on.
 * @throws LocalnetOpenError, ProgramTimeoutError, ExecaError
 */
export async function retireLocalnet(): Promise<boolean> {
  for (const variant of VARIANTS) {
    if (!(await isLocalnetOpen())) return false;
    if (!(await iptablesTables('IPv4', variant)).includes('filter')) continue;
    const saved = await savedTable(iptablesCommand('IPv4', variant), 'filter');
    if (!saved.includes(`\n:${FIREWALL} `) || (await isKubelets('IPv4', variant))) continue;
    const open = await closeLocalnet();
    if (open !== undefined) throw open;
    return true;
  }
  return false;
}

async function isKubelets(family: IpFamily, variant: Variant): Promise<boolean> {
  if (!(await iptablesTables(family, variant)).includes('mangle')) return false;
  return hasKubelet(await savedTable(iptablesCommand(family, variant), 'mangle'));
}

async function savedTable(command: string, table: Table): Promise<string> {
  const limits = { timeout: IPTABLES_TIMEOUTS.read, maxBuffer: 2 ** 30 };
  return await runProgram(`${command}-save`, ['-t', table], limits);
}

const ROUTE_LOCALNET = '/proc/sys/net/ipv4/conf/all/route_localnet';

/** Whether packets from neighbours to 127.0.0.0/8 are let in, but for rules that drop them. */
export async function isLocalnetOpen(): Promise<boolean> {
  return (await readIfThere(ROUTE_LOCALNET)).trim() === '1';
}

async function closeLocalnet(): Promise<LocalnetOpenError | undefined> {
  if (!(await isLocalnetOpen())) return undefined;
  try {
    await writeFile(ROUTE_LOCALNET, '0');
    return undefined;
  } catch (error) {
    return new LocalnetOpenError(error as Error);
  }
}

async function tablesOf(family: IpFamily): Promise<NftTable[]> {
  try {
    const tables = await listTables();
    return tables.filter((table) => table.family === addressFamily(family));
  } catch (error) {
    if (error instanceof UnsupportedError) return [];
    throw error;
  }
}

async function readIfThere(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return '';
    throw error;
  }
}
