/** Renders the desired state of the ipvs mode for the standard tools. */
import type { IpFamily } from '../api/objects.ts';
import { IPVS_DEVICE } from '../api/vip-device.ts';
import { itemText, setText } from './item-text.ts';
import { type IpvsItem, stageOf } from './items.ts';
import { SET_NAMES, setSpec } from './sets.ts';

/**
 * A shell script that programs the kernel with ipset, ipvsadm, iptables-restore and ip.
 * @param rules input for iptables-restore.
 */
export function renderScript(items: Iterable<IpvsItem>, rules: string, family: IpFamily): string {
  const sorted = [...items].sort((a, b) => stageOf(a) - stageOf(b));
  const sets = SET_NAMES.map((set) => setText(setSpec(set, family)));
  const entries = sorted.flatMap((item) => (item.kind === 'entry' ? [itemText(item, family)] : []));
  const services = sorted.flatMap((item) =>
    item.kind === 'service' || item.kind === 'destination' ? [itemText(item, family)] : [],
  );
  const addresses = sorted.flatMap((item) =>
    item.kind === 'address' ? [`address replace ${itemText(item, family)}`] : [],
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
