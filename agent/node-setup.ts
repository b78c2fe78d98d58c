/** What the agent asks of the node, and sets on it, before it programs rules. */
import { readFile, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import type { Logger } from 'pino';
import { familyOf, isUnspecified } from '../api/addresses.ts';
import { asError } from '../api/errors.ts';
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import type { NodeOptions, RunOptions } from '../config/settings.ts';
import { type Iptables, iptablesCommands, type Variant } from '../iptables/commands.ts';
import { isEmpty, restoreChunks } from '../iptables/restore.ts';
import { localnetChange } from '../iptables/ruleset.ts';
import { detectVariant, hasServiceRules } from '../iptables/variant.ts';
import { UserError } from '../process/errors.ts';
import type { Log } from '../process/log.ts';
import { ProgramTimeoutError } from '../process/run-program.ts';
import { selectsLoopback } from '../services/node-port-addresses.ts';

/** Name of this Node: lower-case and trimmed, as kube-proxy and the kubelet make it. */
export function effectiveNodeName(options: NodeOptions): string {
  return (options.hostnameOverride ?? hostname()).trim().toLowerCase();
}

/** `--bind-address`, which tells the node's IP; undefined when it says only that there is one. */
export function nodeIpOverride({
  bindAddress,
}: Pick<NodeOptions, 'bindAddress'>): string | undefined {
  return isUnspecified(bindAddress) ? undefined : bindAddress;
}

/** `net.ipv4.ip_forward` and the like. @returns undefined where the kernel has none such. */
export async function readSysctl(name: string): Promise<string | undefined> {
  try {
    return (await readFile(sysctlPath(name), 'utf8')).trim();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

/** Leaves one alone that is so already. @throws what stands in the way of writing it. */
export async function writeSysctl(name: string, value: string): Promise<void> {
  if ((await readSysctl(name)) !== value) await writeFile(sysctlPath(name), value);
}

function sysctlPath(name: string): string {
  return `/proc/sys/${name.replaceAll('.', '/')}`;
}

/**
 * The commands of the variant that the node uses, for the families that it can do. One that it
 * cannot is logged and left out, as in kube-proxy.
 * @throws UserError when there is none.
 */
export async function usableIptables(options: RunOptions, log: Logger): Promise<Iptables[]> {
  const variant = options.iptablesVariant ?? (await detectVariant());
  log.info({ variant }, 'using iptables');
  const usable: Iptables[] = [];
  for (const family of IP_FAMILIES) {
    const iptables = iptablesCommands(family, variant);
    const reason = await unsupportedReason(family, () => iptables.probe('nat'));
    if (reason === undefined) usable.push(iptables);
    else log.warn({ family, reason }, 'no iptables for this family on this node; it is left out');
  }
  if (usable.length === 0) {
    throw new UserError(
      `iptables-${variant} does not work on this node for any IP family: the package "iptables" ` +
        'must be installed, the kernel must have its tables, and the agent needs CAP_NET_ADMIN',
    );
  }
  await warnOfOtherVariant(variant, log);
  return usable;
}

export const IPV6_DISABLED = 'IPv6 is disabled (net.ipv6.conf.all.disable_ipv6)';

/** Whether the node does without a family. */
export async function isFamilyDisabled(family: IpFamily): Promise<boolean> {
  return family === 'IPv6' && (await readSysctl('net.ipv6.conf.all.disable_ipv6')) !== '0';
}

/**
 * Why a family cannot be served; undefined: it can.
 * @throws ProgramTimeoutError: a command hangs, which is no reason to leave a family out.
 */
export async function unsupportedReason(
  family: IpFamily,
  probe: () => Promise<void>,
): Promise<string | undefined> {
  if (await isFamilyDisabled(family)) return IPV6_DISABLED;
  try {
    await probe();
    return undefined;
  } catch (error) {
    if (error instanceof ProgramTimeoutError) throw error;
    return asError(error).message;
  }
}

/** MASQUERADE --random-fully came with iptables 1.6.2. */
export function hasRandomFully(version: string): boolean {
  const [, major, minor, patch] = /v(\d+)\.(\d+)\.(\d+)/.exec(version) ?? [];
  const [x, y, z] = [Number(major), Number(minor), Number(patch)];
  return x > 1 || (x === 1 && (y > 6 || (y === 6 && z >= 2)));
}

/** Conntrack's strictness decides whether packets that it calls invalid are dropped. */
export async function dropsInvalid(): Promise<boolean> {
  return (await readSysctl('net.netfilter.nf_conntrack_tcp_be_liberal')) !== '1';
}

/**
 * Node ports on 127.0.0.1 need route_localnet; the rules close what it opens (CVE-2020-8558).
 * Not set when no node port is served there anyway.
 */
export async function allowLocalhostNodePorts(options: NodeOptions, log: Logger): Promise<void> {
  if (!servesLocalhost(options)) return;
  const name = 'net.ipv4.conf.all.route_localnet';
  try {
    await writeSysctl(name, '1');
  } catch (error) {
    log.warn({ err: error, sysctl: name }, 'cannot set; node ports do not answer on 127.0.0.1');
  }
}

/** The same before there are any rules: first come those that close what it opens. */
export async function prepareLocalhostNodePorts(options: RunOptions, log: Logger): Promise<void> {
  if (!servesLocalhost(options)) return;
  const variant = options.iptablesVariant ?? (await detectVariant());
  const iptables = iptablesCommands('IPv4', variant);
  try {
    const filter = (await iptables.save()).get('filter');
    const change = localnetChange(filter ?? { chains: new Map(), foreign: new Set() });
    if (!isEmpty(change)) await iptables.restore(restoreChunks(change));
  } catch (error) {
    log.warn(
      { err: error },
      'cannot keep neighbours from 127.0.0.0/8, so node ports are not opened there',
    );
    return;
  }
  await allowLocalhostNodePorts(options, log);
}

function servesLocalhost({ iptablesLocalhostNodeports, nodeportAddresses }: NodeOptions): boolean {
  return iptablesLocalhostNodeports && selectsLoopback(nodeportAddresses, 'IPv4');
}

/** Rules of both variants apply, and those of the other are never updated. */
export async function warnOfOtherVariant(
  variant: Variant,
  log: Log,
  holds = hasServiceRules,
): Promise<void> {
  const other = variant === 'nft' ? 'legacy' : 'nft';
  if (await holds(other)) {
    log.warn(
      { using: variant, other },
      `iptables-${other} has rules for Services too; they stay in force as they are, and nothing updates them`,
    );
  }
}

/** Pods behind one bridge reach each other past iptables unless the bridge calls it. */
export async function warnOfBridge(
  families: readonly IpFamily[],
  log: Log,
  read = readSysctl,
): Promise<void> {
  for (const family of families) {
    const name = `net.bridge.bridge-nf-call-${family === 'IPv4' ? 'iptables' : 'ip6tables'}`;
    const effect = 'traffic between pods on the same bridge bypasses Service rules';
    await warnOfZero(name, effect, log, read);
  }
}

/**
 * Without forwarding, what is translated for other hosts and pods is dropped. A single-stack node need not
 * forward the family that it has no address of.
 * @param addresses of the Node; empty: unknown, and IPv4 is assumed.
 */
export async function warnOfForwarding(
  addresses: readonly string[],
  log: Log,
  read = readSysctl,
): Promise<void> {
  const families = addresses.length === 0 ? ['IPv4'] : new Set(addresses.map(familyOf));
  for (const family of families) {
    const name = family === 'IPv4' ? 'net.ipv4.ip_forward' : 'net.ipv6.conf.all.forwarding';
    const effect = `${family} Services answer only to processes of this node, not to pods or other hosts; set it to 1`;
    await warnOfZero(name, effect, log, read);
  }
}

/**
 * `--reset-deleted-endpoint-connections` deletes the entry of a connection, so that its next packet is
 * tracked as the first of a new one. With nf_conntrack_tcp_loose=0 it would be invalid instead.
 */
export async function warnOfStrictConntrack(log: Log, read = readSysctl): Promise<void> {
  const effect = 'TCP connections to deleted endpoints cannot be reset; set it to 1';
  await warnOfZero('net.netfilter.nf_conntrack_tcp_loose', effect, log, read);
}

async function warnOfZero(
  sysctl: string,
  effect: string,
  log: Log,
  read: typeof readSysctl,
): Promise<void> {
  if ((await read(sysctl)) === '0') log.warn({ sysctl }, `${sysctl}=0: ${effect}`);
}
