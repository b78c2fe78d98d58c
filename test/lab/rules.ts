/** iptables in a host's namespace, with either variant of the tools. */

import type { Host } from './host.ts';
import type { Family, IptablesVariant } from './outcomes.ts';

/** Name of an iptables tool, such as `ip6tables-nft-save`. */
export function iptablesTool(
  variant: IptablesVariant,
  family: Family,
  suffix?: 'save' | 'restore',
): string {
  const tool = `${family === 4 ? 'iptables' : 'ip6tables'}-${variant}`;
  return suffix ? `${tool}-${suffix}` : tool;
}

/**
 * The rules of one table of a host as iptables-save prints them, without comments and counters;
 * empty if the table does not exist.
 *
 * @throws LabError `COMMAND_FAILED`
 */
export async function iptablesRules(
  host: Host,
  variant: IptablesVariant,
  family: Family,
  table: string,
): Promise<string> {
  const { stdout } = await host.exec(iptablesTool(variant, family, 'save'), ['-t', table]);
  return withoutCounters(stdout);
}

/**
 * Removes all rules of a host's namespace: all nf_tables tables, including iptables-nft's,
 * and iptables-legacy.
 *
 * @throws LabError `COMMAND_FAILED`
 */
export async function removeRules(host: Host): Promise<void> {
  const input = ['mangle', 'nat', 'filter'].map((table) => `*${table}\nCOMMIT\n`).join('');
  await Promise.all([
    host.exec('nft', ['flush', 'ruleset']),
    ...([4, 6] as const).map((family) =>
      host.exec(iptablesTool('legacy', family, 'restore'), ['-w', '10'], { input }),
    ),
  ]);
}

/** Output of iptables-save without comments and counters, which vary. */
export function withoutCounters(saved: string): string {
  return saved
    .split('\n')
    .filter((line) => !line.startsWith('#'))
    .map((line) => line.replace(/ \[\d+:\d+\]$/, ''))
    .join('\n');
}

/** The rules that serveEveryPort needs in the host's own namespace, as iptables-restore input. */
export function everyPortRules(action: 'add' | 'remove', family: Family, port: number): string {
  const flag = action === 'add' ? '-A' : '-D';
  const unreachable =
    family === 4
      ? '-p icmp --icmp-type port-unreachable'
      : '-p ipv6-icmp --icmpv6-type port-unreachable';
  return [
    '*mangle',
    // Later packets find the connection's own socket.
    `${flag} PREROUTING -p tcp --syn -m addrtype --dst-type LOCAL -j TPROXY --on-port ${port}`,
    'COMMIT',
    '*filter',
    `${flag} OUTPUT ${unreachable} -j DROP`,
    'COMMIT',
    '',
  ].join('\n');
}
