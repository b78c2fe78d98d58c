/** Reads, sets and checks properties of the node that rules depend on: name, sysctls, iptables variant. */
import { readFile, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import type { Logger } from 'pino';
import { familyOf, isUnspecified } from '../api/addresses.ts';
import { asError } from '../api/errors.ts';
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import type { NodeOptions, RunOptions } from '../config/settings.ts';
import { type Iptables, iptablesCommands, isMissing, type Variant } from '../iptables/commands.ts';
import { isEmpty, restoreChunks } from '../iptables/restore.ts';
import { SEVERAL_PORTS } from '../iptables/rule.ts';
import { localnetChange } from '../iptables/ruleset.ts';
import { detectVariant, hasServiceRules } from '../iptables/variant.ts';
import { UserError } from '../process/errors.ts';
import type { Log } from '../process/log.ts';
import { ProgramTimeoutError } from '../process/run-program.ts';
import { selectsLoopback } from '../services/node-port-addresses.ts';

/** The name of this node's Node object: trimmed and in lower case, as in kube-proxy and the kubelet. */
export function effectiveNodeName(options: NodeOptions): string {
  return (options.hostnameOverride ?? hostname()).trim().toLowerCase();
}

/** The node IP of `--bind-address`; undefined for 0.0.0.0 and ::. */
export function nodeIpOverride({
  bindAddress,
}: Pick<NodeOptions, 'bindAddress'>): string | undefined {
  return isUnspecified(bindAddress) ? undefined : bindAddress;
}

/** Reads a sysctl such as `net.ipv4.ip_forward`. @returns undefined if the kernel does not have it. */
export async function readSysctl(name: string): Promise<string | undefined> {
  try {
    return (await readFile(sysctlPath(name), 'utf8')).trim();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

/** Writes a sysctl unless it already has the value. @throws Error if it cannot be written. */
export async function writeSysctl(name: string, value: string): Promise<void> {
  if ((await readSysctl(name)) !== value) await writeFile(sysctlPath(name), value);
}

function sysctlPath(name: string): string {
  return `/proc/sys/${name.replaceAll('.', '/')}`;
}

/**
 * The iptables commands of the variant in use, for the supported IP families. As in kube-proxy, an unsupported
 * family is logged and omitted.
 * @param servesRanges whether port ranges are served by rules.
 * @throws UserError if iptables is not installed, or no IP family is supported.
 */
export async function usableIptables(
  options: RunOptions,
  log: Logger,
  servesRanges: boolean,
): Promise<Iptables[]> {
  const variant = options.iptablesVariant ?? (await detectVariant());
  log.info({ variant }, 'using iptables');
  const usable: Iptables[] = [];
  const reasons: string[] = [];
  for (const family of IP_FAMILIES) {
    const iptables = iptablesCommands(family, variant);
    const reason = await unsupportedReason(family, async () => {
      await iptables.probe('nat');
      if (servesRanges) await iptables.probeRule('nat', SEVERAL_PORTS);
    });
    if (reason === undefined) usable.push(iptables);
    else {
      log.warn({ family, reason }, 'iptables is not supported for this IP family; not serving it');
      reasons.push(`${family}: ${reason}`);
    }
  }
  if (usable.length === 0) {
    await requireProgram(iptablesCommands('IPv4', variant));
    throw new UserError(
      `iptables-${variant} does not work on this node for any IP family (${reasons.join('; ')}). It needs ` +
        'the kernel modules of its tables and matches, and CAP_NET_ADMIN',
    );
  }
  await warnOfOtherVariant(variant, log);
  return usable;
}

/** @throws UserError if iptables is not installed. */
async function requireProgram(iptables: Iptables): Promise<void> {
  const error = await iptables.version().then(
    () => undefined,
    (reason: unknown) => reason,
  );
  if (!isMissing(error)) return;
  throw new UserError(
    `iptables-${iptables.variant} is not installed: modes iptables and ipvs need it, in a pod an image with it`,
  );
}

export const IPV6_DISABLED = 'IPv6 is disabled (net.ipv6.conf.all.disable_ipv6)';

/** Whether the IP family is disabled on the node. */
export async function isFamilyDisabled(family: IpFamily): Promise<boolean> {
  return family === 'IPv6' && (await readSysctl('net.ipv6.conf.all.disable_ipv6')) !== '0';
}

/**
 * @returns why the IP family is not supported; undefined if it is.
 * @throws ProgramTimeoutError if a command hangs; support is then unknown.
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

/** Whether iptables supports MASQUERADE --random-fully (since 1.6.2). @param version output of `iptables --version`. */
export function hasRandomFully(version: string): boolean {
  const [, major, minor, patch] = /v(\d+)\.(\d+)\.(\d+)/.exec(version) ?? [];
  const [x, y, z] = [Number(major), Number(minor), Number(patch)];
  return x > 1 || (x === 1 && (y > 6 || (y === 6 && z >= 2)));
}

/** Whether to drop packets that conntrack marks invalid: not in liberal mode, as in kube-proxy. */
export async function dropsInvalid(): Promise<boolean> {
  return (await readSysctl('net.netfilter.nf_conntrack_tcp_be_liberal')) !== '1';
}

/**
 * Sets route_localnet, which node ports on 127.0.0.1 need, unless they are disabled. Call it only after rules
 * that block access to 127.0.0.0/8 from other hosts (CVE-2020-8558).
 */
export async function allowLocalhostNodePorts(options: NodeOptions, log: Logger): Promise<void> {
  if (!servesLocalhost(options)) return;
  const name = 'net.ipv4.conf.all.route_localnet';
  try {
    await writeSysctl(name, '1');
  } catch (error) {
    const effect = 'node ports do not answer on 127.0.0.1';
    const hint = 'run "portwide run --init-only" in a privileged container';
    log.warn({ err: error, sysctl: name, effect, hint }, 'cannot set sysctl');
  }
}

/** The setup of `--init-only` for node ports on 127.0.0.1: first the rules that block other hosts, then route_localnet. */
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
      { err: error, effect: 'node ports do not answer on 127.0.0.1' },
      'cannot write the rules that block other hosts from 127.0.0.0/8',
    );
    return;
  }
  await allowLocalhostNodePorts(options, log);
}

function servesLocalhost({ iptablesLocalhostNodeports, nodeportAddresses }: NodeOptions): boolean {
  return iptablesLocalhostNodeports && selectsLoopback(nodeportAddresses, 'IPv4');
}

/** Warns if the other iptables variant has Service rules: the kernel applies the rules of both variants. */
export async function warnOfOtherVariant(
  variant: Variant,
  log: Log,
  hasRules = hasServiceRules,
): Promise<void> {
  const other = variant === 'nft' ? 'legacy' : 'nft';
  if (await hasRules(other)) {
    log.warn(
      { using: variant, other, effect: 'its rules remain in force and are not updated' },
      'the other iptables variant has Service rules, too',
    );
  }
}

/** Warns if bridged traffic, such as traffic between pods on the same bridge, bypasses the netfilter hooks of IP. */
export async function warnOfBridge(
  families: readonly IpFamily[],
  log: Log,
  read = readSysctl,
): Promise<void> {
  for (const family of families) {
    const name = `net.bridge.bridge-nf-call-${family === 'IPv4' ? 'iptables' : 'ip6tables'}`;
    const message = 'traffic between pods on the same bridge bypasses Service rules';
    await warnOfZero(name, message, { family }, log, read);
  }
}

/** IPv6 packets are forwarded between all interfaces or none, whatever the sysctl of an interface says. */
const FORWARDING = {
  IPv4: 'net.ipv4.ip_forward',
  IPv6: 'net.ipv6.conf.all.forwarding',
} as const satisfies Record<IpFamily, string>;

/** @returns the sysctl that disables forwarding; undefined if the node forwards. */
export async function disabledForwarding(family: IpFamily): Promise<string | undefined> {
  const name = FORWARDING[family];
  return (await readSysctl(name)) === '0' ? name : undefined;
}

/**
 * Warns if IP forwarding is disabled: after DNAT, traffic of pods and other hosts is then dropped. Checks only the
 * families of the node's addresses.
 * @param addresses the Node's addresses. If empty, IPv4 is assumed.
 */
export async function warnOfForwarding(
  addresses: readonly string[],
  log: Log,
  read = readSysctl,
): Promise<void> {
  const families: Iterable<IpFamily> =
    addresses.length === 0 ? ['IPv4'] : new Set(addresses.map(familyOf));
  for (const family of families) {
    const name = FORWARDING[family];
    const message = 'IP forwarding is disabled: pods and other hosts cannot use Services';
    await warnOfZero(name, message, { family }, log, read);
  }
}

/**
 * Warns if conntrack does not pick up established TCP connections. `--reset-deleted-endpoint-connections` deletes
 * the conntrack entry, so that the next packet creates a new entry. With nf_conntrack_tcp_loose=0 the next packet is
 * invalid instead.
 */
export async function warnOfStrictConntrack(log: Log, read = readSysctl): Promise<void> {
  const message = 'TCP connections to deleted endpoints cannot be reset';
  await warnOfZero('net.netfilter.nf_conntrack_tcp_loose', message, {}, log, read);
}

async function warnOfZero(
  sysctl: string,
  message: string,
  details: { readonly family?: IpFamily },
  log: Log,
  read: typeof readSysctl,
): Promise<void> {
  if ((await read(sysctl)) === '0') {
    log.warn({ ...details, sysctl, value: '0', hint: 'set it to 1' }, message);
  }
}
