/** Facts about the kernel and the programs of this node, for `portwide check`. Changes nothing. */
import { constants } from 'node:fs';
import { access, readdir, readFile } from 'node:fs/promises';
import { release } from 'node:os';
import { asError } from '../../api/errors.ts';
import { IP_FAMILIES } from '../../api/objects.ts';
import type { RunOptions } from '../../config/settings.ts';
import type { Variant } from '../../iptables/commands.ts';
import { detectVariant, iptablesTables } from '../../iptables/variant.ts';
import {
  type Listener,
  type ModeFact,
  type ModuleState,
  moduleState,
  type StartWarning,
  type SupportedVersion,
  type Sysctls,
} from '../../preflight/node.ts';
import { readListeners } from '../../preflight/proc-files.ts';
import type { Fact } from '../../preflight/result.ts';
import { createLog } from '../../process/log.ts';
import { pickMode } from '../mode.ts';
import { kernelTooOld } from '../nftables-support.ts';
import { isFamilyDisabled, readSysctl } from '../node-setup.ts';
import { requirePolicySupport } from '../policy.ts';
import { fact } from './fact.ts';

/** A log that keeps its lines. */
export function keepingLog() {
  const lines: StartWarning[] = [];
  const infos: StartWarning[] = [];
  const write = (line: string) => {
    const { level, time: _, msg, ...details } = JSON.parse(line) as Record<string, unknown>;
    (Number(level) >= 40 ? lines : infos).push({ message: String(msg), details });
  };
  const log = createLog({ v: 0, loggingFormat: 'json' }, { stream: { write }, isTerminal: false });
  return { log, infos, warnings: lines };
}
type KeepingLog = ReturnType<typeof keepingLog>;

export function kernelVersion(): SupportedVersion {
  return { version: release(), problem: kernelTooOld(release()) };
}

/** The mode that the agent would use. Opens it as the agent does, which programs nothing. */
export async function readMode(options: RunOptions, { log, infos }: KeepingLog): Promise<ModeFact> {
  const definition = await pickMode(options, log);
  const { name } = definition;
  const reason =
    options.proxyMode === undefined ? String(infos[0]?.details.reason) : '--proxy-mode';
  if (definition.writesIptablesRules) await requireLegacyTables(options.iptablesVariant);
  try {
    const { families } = await definition.open(options, log);
    return { name, reason, support: { families } };
  } catch (error) {
    return { name, reason, support: { error: asError(error).message } };
  }
}

/**
 * iptables-legacy creates a table when it reads it, so a mode with iptables rules cannot be opened before the table exists.
 * @throws Error if iptables-legacy is the variant, and lacks table nat.
 */
async function requireLegacyTables(given: Variant | undefined): Promise<void> {
  if ((given ?? (await detectVariant())) !== 'legacy') return;
  for (const family of IP_FAMILIES) {
    if (await isFamilyDisabled(family)) continue;
    if ((await iptablesTables(family, 'legacy')).includes('nat')) continue;
    throw new Error(`iptables-legacy has no table nat for ${family}, and reading creates it`);
  }
}

/** @returns undefined without --network-policy. */
export async function readPolicyProblem(
  options: RunOptions,
): Promise<Fact<string | undefined> | undefined> {
  if (!options.networkPolicy) return undefined;
  return fact(() =>
    requirePolicySupport(options).then(
      () => undefined,
      (error: unknown) => asError(error).message,
    ),
  );
}

/** States of the modules of mode ipvs. Loads none. */
export async function readModules(scheduler: string): Promise<ReadonlyMap<string, ModuleState>> {
  const read = (path: string) => readFile(path, 'utf8').catch(() => '');
  const directory = `/lib/modules/${release()}`;
  const files = {
    loaded: await readdir('/sys/module'),
    builtin: await read(`${directory}/modules.builtin`),
    dep: await read(`${directory}/modules.dep`),
  };
  const names = ['ip_vs', `ip_vs_${scheduler}`, 'ip_set', 'dummy'];
  return new Map(names.map((name) => [name, moduleState(name, files)]));
}

const SYSCTLS = [
  'net.ipv4.conf.all.route_localnet',
  'net.ipv4.ip_local_port_range',
  'net.ipv4.ip_local_reserved_ports',
  'net.ipv4.vs.conntrack',
  'net.netfilter.nf_conntrack_count',
  'net.netfilter.nf_conntrack_tcp_be_liberal',
];

export async function readSysctls(): Promise<Sysctls> {
  const found = new Map<string, string>();
  const interfaces = await readdir('/proc/sys/net/ipv4/conf');
  // A dot separates parts of a sysctl name, so an interface with a dot is read by path.
  for (const each of interfaces) {
    const path = `/proc/sys/net/ipv4/conf/${each}/rp_filter`;
    const value = await readFile(path, 'utf8').catch(() => undefined);
    if (value !== undefined) found.set(`net.ipv4.conf.${each}.rp_filter`, value.trim());
  }
  for (const name of SYSCTLS) {
    const value = await readSysctl(name);
    if (value !== undefined) found.set(name, value);
  }
  return found;
}

export async function readListenersOfNode(): Promise<Listener[]> {
  const files = ['/proc/self/net/tcp', '/proc/self/net/tcp6'];
  const contents = files.map((path) => readFile(path, 'utf8').catch(() => ''));
  return (await Promise.all(contents)).flatMap(readListeners);
}

/** Why iptables cannot take its lock; undefined if it can. */
export async function xtablesLockProblem(): Promise<string | undefined> {
  const file = '/run/xtables.lock';
  const { R_OK, W_OK } = constants;
  try {
    await access(file, R_OK | W_OK);
    return undefined;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') return asError(error).message;
  }
  return access('/run', W_OK).then(
    () => undefined,
    (error: unknown) => `${file} does not exist and cannot be created: ${asError(error).message}`,
  );
}
