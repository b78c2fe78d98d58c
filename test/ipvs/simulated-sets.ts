/** Simulates ipsets of the types that the ipvs mode uses. */
import { getOrCreate } from '../../api/collections.ts';
import type { IpFamily } from '../../api/objects.ts';
import type { EntryItem } from '../../ipvs/items.ts';
import { kernelName, SET_NAMES, setSpec } from '../../ipvs/sets.ts';
import type { IpsetEntry, IpsetType } from '../../netlink/ipset/ipset.ts';
import type { PacketState, Sets } from '../iptables/chain-walk.ts';
import { network } from '../traffic/expected-outcome.ts';

interface SimulatedSet {
  readonly type: IpsetType;
  /** By `keyOf`; for types with networks, without the networks. */
  readonly entries: Map<string, IpsetEntry[]>;
}

export class SimulatedSets implements Sets {
  readonly #sets = new Map<string, SimulatedSet>();

  constructor(family: IpFamily, items: Iterable<EntryItem>) {
    for (const name of SET_NAMES) {
      const { type } = setSpec(name, family);
      this.#sets.set(kernelName(name, family), { type, entries: new Map() });
    }
    for (const { set, entry } of items) {
      const { type, entries } = this.#of(kernelName(set, family));
      const { port = 0, portTo = port } = entry;
      for (let each = port; each <= portTo; each++) {
        const key = keyOf(type, { ...entry, port: each });
        getOrCreate(entries, key, () => []).push(entry);
      }
    }
  }

  has(set: string, flags: string, packet: PacketState): boolean {
    return this.#find(set, flags, packet) !== undefined;
  }

  markOf(set: string, flags: string, packet: PacketState): number | undefined {
    return this.#find(set, flags, packet)?.skbMark;
  }

  #of(name: string): SimulatedSet {
    const set = this.#sets.get(name);
    if (set === undefined) throw new Error(`no such set: ${name}`);
    return set;
  }

  #find(name: string, flags: string, packet: PacketState): IpsetEntry | undefined {
    const { type, entries } = this.#of(name);
    // bitmap_port_kadt accepts TCP and UDP only. Other types with ports accept SCTP too.
    const noPorts = type === 'bitmap:port' ? ['sctp', 'icmp'] : ['icmp'];
    if (type.includes('port') && noPorts.includes(packet.protocol)) return undefined;
    const lookup = asEntry(type, flags.split(','), packet);
    return entries.get(keyOf(type, lookup))?.findLast((entry) => {
      const isIn = (cidr = '', address = '') => network(cidr)(address);
      if (type === 'hash:net,net' && !isIn(entry.ip, lookup.ip)) return false;
      return !type.endsWith(',net') || isIn(entry.ip2, lookup.ip2);
    });
  }
}

/** The entry that a set looks up for a packet. */
function asEntry(type: IpsetType, flags: readonly string[], packet: PacketState): IpsetEntry {
  const side = (index: number) => {
    const flag = flags[index];
    if (flag === 'dst') return packet.destination;
    if (flag === 'src') return packet.source;
    throw new Error(`${type} has no part ${index} in ${flags}`);
  };
  const parts = type === 'bitmap:port' ? ['port'] : type.replace('hash:', '').split(',');
  if (parts.length !== flags.length) throw new Error(`${type} does not have the parts ${flags}`);
  const port = parts.indexOf('port');
  if (port >= 0 && flags[port] !== 'dst') throw new Error('source ports are not supported');
  return {
    ...(port === 0 ? {} : { ip: side(0) }),
    ...(port >= 0 ? { protocol: PROTOCOL[packet.protocol], port: packet.port } : {}),
    ...(parts.includes('mark') ? { mark: packet.mark } : {}),
    ...(['ip', 'net'].includes(parts.at(-1) ?? '') && parts.length > 1
      ? { ip2: side(parts.length - 1) }
      : {}),
  };
}

const PROTOCOL = { tcp: 'TCP', udp: 'UDP', sctp: 'SCTP', icmp: 1 } as const;

function keyOf(type: IpsetType, { ip, protocol, port, ip2, mark }: IpsetEntry): string {
  switch (type) {
    case 'hash:ip':
      return `${ip}`;
    case 'hash:ip,port':
    case 'hash:ip,port,net':
      return `${ip} ${protocol} ${port}`;
    case 'hash:ip,port,ip':
      return `${ip} ${protocol} ${port} ${ip2}`;
    case 'hash:ip,mark':
      return `${ip} ${mark}`;
    case 'bitmap:port':
      return `${port}`;
    case 'hash:net,net':
      return '';
  }
}
