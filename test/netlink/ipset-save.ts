import type { IpsetEntry } from '../../netlink/ipset/ipset.ts';

/** An entry in the format of `ipset save`, without the set name. */
export function entryText({ ip, protocol, port, ip2, mark, skbMark }: IpsetEntry): string {
  const parts: string[] = [];
  if (ip !== undefined) parts.push(bare(ip));
  if (port !== undefined) {
    const prefix = protocol === undefined ? '' : `${String(protocol).toLowerCase()}:`;
    parts.push(`${prefix}${port}`);
  }
  if (mark !== undefined) parts.push(hex(mark, 8));
  if (ip2 !== undefined) parts.push(bare(ip2));
  return parts.join(',').concat(skbMark === undefined ? '' : ` skbmark ${hex(skbMark)}`);
}

/** The entries of a set from the output of `ipset save`, sorted. */
export function savedEntries(saved: string, set: string): string[] {
  const start = `add ${set} `;
  const lines = saved.split('\n').filter((line) => line.startsWith(start));
  return lines.map((line) => line.slice(start.length).trim()).sort();
}

/** ipset prints a network of one address without prefix length. */
function bare(net: string): string {
  return net.replace(net.includes(':') ? /\/128$/ : /\/32$/, '');
}

function hex(value: number, digits = 1): string {
  return `0x${value.toString(16).padStart(digits, '0')}`;
}
