/** Renders the desired state of the ipvs mode for the standard tools. */
import type { IpFamily } from '../api/objects.ts';
import { IPVS_DEVICE } from '../api/vip-device.ts';
import { hostPrefixLength } from '../iptables/chains.ts';
import { hex } from '../iptables/rule.ts';
import type { IpsetEntry, IpsetSpec } from '../netlink/ipset/ipset.ts';
import type { IpvsServiceKey } from '../netlink/ipvs/ipvs.ts';
import { type IpvsItem, stageOf } from './items.ts';
import { kernelName, SET_NAMES, setSpec } from './sets.ts';

/**
 * A shell script that programs the kernel with ipset, ipvsadm, iptables-restore and ip.
 * @param rules input for iptables-restore.
 */
export function renderScript(items: Iterable<IpvsItem>, rules: string, family: IpFamily): string {
  const sorted = [...items].sort((a, b) => stageOf(a) - stageOf(b));
  const sets = SET_NAMES.map((set) => createLine(setSpec(set, family)));
  const entries = sorted.flatMap((item) =>
    item.kind === 'entry' ? [`add ${kernelName(item.set, family)} ${entryLine(item.entry)}`] : [],
  );
  const services = sorted.flatMap((item) => tableLines(item, family));
  // Bind VIPs as `changeAddresses` does, so that the kernel does not choose them as source
  // addresses.
  const notSource = family === 'IPv4' ? 'scope host' : 'nodad preferred_lft 0';
  const addresses = sorted.flatMap((item) =>
    item.kind === 'address'
      ? [
          `address replace ${item.address}/${hostPrefixLength(family)} dev ${IPVS_DEVICE} ${notSource}`,
        ]
      : [],
  );
  const [ip, restore] = family === 'IPv4' ? ['ip -4', 'iptables'] : ['ip -6', 'ip6tables'];
  return [
    '#!/bin/sh -e',
    hereDocument('ipset -exist restore', [...sets, ...entries]),
    hereDocument('ipvsadm --restore', services),
    hereDocument(
      `${restore}-restore --noflush`,
      rules.split('\n').filter((line) => line !== ''),
    ),
    `ip link show ${IPVS_DEVICE} >/dev/null 2>&1 || ip link add ${IPVS_DEVICE} type dummy`,
    hereDocument(`${ip} -batch -`, addresses),
    '',
  ].join('\n');
}

/** A shell here-document. The delimiter is quoted, so the shell expands nothing in the lines. */
function hereDocument(command: string, lines: readonly string[]): string {
  return [`${command} <<'END'`, ...lines, 'END'].join('\n');
}

function createLine(spec: IpsetSpec): string {
  const { name, type, family, skbinfo, comments, maxElements } = spec;
  const shape =
    type === 'bitmap:port'
      ? 'range 0-65535'
      : `family ${family === 'IPv4' ? 'inet' : 'inet6'} maxelem ${maxElements}`;
  return `create ${name} ${type} ${shape}${skbinfo ? ' skbinfo' : ''}${comments === true ? ' comment' : ''}`;
}

function entryLine({
  ip,
  protocol,
  port,
  portTo,
  ip2,
  mark,
  skbMark,
  comment,
}: IpsetEntry): string {
  const ports = portTo === undefined ? `${port}` : `${port}-${portTo}`;
  const named = typeof protocol === 'string' ? `${protocol.toLowerCase()}:` : '';
  const fields = [
    ip,
    port === undefined ? undefined : `${named}${ports}`,
    ip2,
    mark === undefined ? undefined : hex(mark),
  ];
  const value = fields.filter((field) => field !== undefined).join(',');
  const extensions = [
    ...(skbMark === undefined ? [] : [`skbmark ${hex(skbMark)}`]),
    ...(comment === undefined ? [] : [`comment "${comment}"`]),
  ];
  return [value, ...extensions].join(' ');
}

function tableLines(item: IpvsItem, family: IpFamily): string[] {
  if (item.kind === 'service') {
    const { scheduler, schedulerFlags, persistenceSeconds } = item.config;
    const flags = [
      ...(schedulerFlags & 0x08 ? ['flag-1'] : []),
      ...(schedulerFlags & 0x10 ? ['flag-2'] : []),
    ];
    const persistence = persistenceSeconds > 0 ? ` -p ${persistenceSeconds}` : '';
    const options = flags.length > 0 ? ` -b ${flags.join(',')}` : '';
    return [`-A ${serviceArgument(item.service, family)} -s ${scheduler}${persistence}${options}`];
  }
  if (item.kind !== 'destination') return [];
  const { address, port } = item.destination;
  const target = `${bracketed(address)}:${port}`;
  return [`-a ${serviceArgument(item.service, family)} -r ${target} -m -w 1`];
}

function serviceArgument(key: IpvsServiceKey, family: IpFamily): string {
  if (key.kind === 'mark') return `-f ${key.mark}${family === 'IPv6' ? ' -6' : ''}`;
  const flag = { TCP: '-t', UDP: '-u', SCTP: '--sctp-service' }[key.protocol];
  return `${flag} ${bracketed(key.address)}:${key.port}`;
}

function bracketed(address: string): string {
  return address.includes(':') ? `[${address}]` : address;
}
