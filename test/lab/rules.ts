/** iptables in a host's namespace, by either variant of the tools. */

import type { Host } from './host.ts';
import type { Family, IptablesVariant } from './outcomes.ts';

/** The name of an iptables tool, such as `ip6tables-nft-save`. */
export function iptablesTool(
  variant: IptablesVariant,
  family: Family,
  suffix?: 'save' | 'restore',
): string {
  const tool = `${family === 4 ? 'iptables' : 'ip6tables'}-${variant}`;
  return suffix ? `${tool}-${suffix}` : tool;
}

/**
 * The rules of one table in a host, in the form of iptables-save, without comments and counters;
 * empty where the table does not exist.
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
 * Removes every rule of a host's namespace: all of nf_tables, and with that of iptables-nft, and iptables-legacy.
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

/** What iptables-save says, without what differs from time to time: comments and counters. */
export function withoutCounters(saved: string): string {
  return saved
    .split('\n')
    .filter((line) => !line.startsWith('#'))
    .map((line) => line.replace(/ \[\d+:\d+\]$/, ''))
    .join('\n');
}

/** The rules of the host's own namespace for serveEveryPort, as iptables-restore input. */
export function everyPortRules(action: 'add' | 'remove', family: Family, port: number): string {
  const flag = action === 'add' ? '-A' : '-D';
  const unreachable =
    family === 4
      ? '-p icmp --icmp-type port-unreachable'
      : '-p ipv6-icmp --icmpv6-type port-unreachable';
  return [
    '*nat',
    `${flag} PREROUTING -p tcp -j REDIRECT --to-ports ${port}`,
    'COMMIT',
    '*filter',
    `${flag} OUTPUT ${unreachable} -j DROP`,
    'COMMIT',
    '',
  ].join('\n');
}
