/**
 * Follows the first packet of a connection through the rules, ipsets and services of the IPVS mode,
 * every way it may go. A packet to an address of this host (VIPs are on the dummy device) is for
 * IPVS behind filter INPUT; one that a process of the node sends is, behind nat OUTPUT.
 */
import { getOrCreate } from '../../api/collections.ts';
import type { Table } from '../../iptables/chains.ts';
import { destinationText, type Item, serviceText } from '../../ipvs/items.ts';
import type { IpvsDestinationKey, IpvsServiceKey } from '../../netlink/ipvs/ipvs.ts';
import {
  type Chains,
  newState,
  type PacketState,
  type Sets,
  walk,
} from '../iptables/chain-walk.ts';
import type { PacketPath } from '../iptables/tracer.ts';
import { outcomeText, type Packet } from '../traffic/expected-outcome.ts';

interface Service {
  readonly key: IpvsServiceKey;
  readonly isPersistent: boolean;
  readonly destinations: IpvsDestinationKey[];
}

/** What the kernel holds. */
export interface Kernel {
  readonly chains: Readonly<Record<Table, Chains>>;
  readonly sets: Sets;
  /** By `serviceText`. */
  readonly services: ReadonlyMap<string, Service>;
  /** All addresses of the host, those on the dummy device included. */
  readonly local: ReadonlySet<string>;
}

/** IPVS's table. */
export function ipvsTable(items: Iterable<Item>): Kernel['services'] {
  const services = new Map<string, Service>();
  const destinations = new Map<string, IpvsDestinationKey[]>();
  const destinationsOf = (key: string) => getOrCreate(destinations, key, () => []);
  for (const item of items) {
    if (item.kind !== 'service' && item.kind !== 'destination') continue;
    const text = serviceText(item.service);
    if (item.kind === 'destination') destinationsOf(text).push(item.destination);
    else {
      services.set(text, {
        key: item.service,
        isPersistent: item.config.persistenceSeconds > 0,
        destinations: destinationsOf(text),
      });
    }
  }
  for (const key of destinations.keys()) {
    if (!services.has(key)) throw new Error(`destinations without a service: ${key}`);
  }
  return services;
}

type Hook = `${Table} ${string}` | 'route' | 'IPVS';

/** The way behind IPVS: packets to endpoints leave as if the node had sent them. */
const OUTPUT_HOOKS: readonly Hook[] = ['mangle OUTPUT', 'filter OUTPUT', 'nat POSTROUTING'];

/** Every way that a packet may go. */
export function packetPaths(kernel: Kernel, packet: Packet): PacketPath[] {
  const isOwn = packet.inInterface === undefined;
  const way: readonly Hook[] = isOwn
    ? ['mangle OUTPUT', 'nat OUTPUT', 'IPVS', 'filter OUTPUT', 'nat POSTROUTING', 'route']
    : ['mangle PREROUTING', 'nat PREROUTING', 'route'];
  return follow(kernel, way, newState(packet, kernel.local, kernel.sets), isOwn);
}

function follow(
  kernel: Kernel,
  way: readonly Hook[],
  state: PacketState,
  isOwn: boolean,
): PacketPath[] {
  const [stop, ...further] = way;
  if (stop === undefined) {
    const {
      translated,
      destination: address,
      port,
      masqueraded,
      accepted,
      addedEntries: remembered,
    } = state;
    const fate = translated
      ? { translated: { address, port }, masqueraded }
      : { masqueraded, accepted };
    return [{ outcome: outcomeText(fate), affinityEntries: remembered }];
  }
  if (stop === 'route')
    return follow(kernel, hooksAfterRouting(kernel, state, isOwn), arrived(state), isOwn);
  if (stop === 'IPVS') {
    return scheduled(kernel, state).flatMap((answer) => {
      if (answer === 'nobody') return follow(kernel, further, state, isOwn);
      if (typeof answer === 'string')
        return [{ outcome: answer, affinityEntries: state.addedEntries }];
      return follow(kernel, OUTPUT_HOOKS, answer, isOwn);
    });
  }
  const [table, chain = ''] = stop.split(' ') as [Table, string];
  return [...walk(kernel.chains[table], chain, state)].flatMap(({ verdict, state: after }) => {
    const passes = verdict === 'RETURN' || verdict === 'ACCEPT';
    if (!passes && table === 'nat') throw new Error('table nat cannot drop');
    if (!passes) return [{ outcome: verdict, affinityEntries: after.addedEntries }];
    const isLast = stop === 'filter INPUT' || stop === 'filter FORWARD';
    const accepted = after.accepted || (isLast && verdict === 'ACCEPT');
    return follow(kernel, further, { ...after, accepted }, isOwn);
  });
}

/** Behind routing. What the node sends to itself comes in again, but nat has seen it. */
function hooksAfterRouting(
  { local }: Kernel,
  { destination }: PacketState,
  isOwn: boolean,
): readonly Hook[] {
  const arrives = local.has(destination);
  if (isOwn) return arrives ? ['mangle PREROUTING', 'filter INPUT', 'IPVS'] : [];
  return arrives
    ? ['filter INPUT', 'IPVS']
    : ['mangle FORWARD', 'filter FORWARD', 'nat POSTROUTING'];
}

function arrived(state: PacketState): PacketState {
  return { ...state, inInterface: state.inInterface ?? 'lo' };
}

/** What IPVS makes of a packet: to a destination, or rejected, or not its own. */
function scheduled(
  kernel: Kernel,
  state: PacketState,
): (PacketState | 'nobody' | `REJECT ${string}`)[] {
  const { destination: vip, source, port, protocol, affinityEntries: memory } = state;
  // ip_vs_schedule leaves clients at port 20 alone: FTP data comes from there.
  if (!kernel.local.has(vip) || protocol === 'icmp' || state.sourcePort === 20) return ['nobody'];
  const service =
    kernel.services.get(`FWM ${state.mark}`) ??
    kernel.services.get(`${protocol.toUpperCase()} ${vip}:${port}`);
  if (service === undefined) return ['nobody'];
  const { key, isPersistent, destinations } = service;
  if (destinations.length === 0) {
    return [`REJECT ${vip.includes(':') ? 'icmp6' : 'icmp'}-port-unreachable`];
  }
  const noteOf = (destination: IpvsDestinationKey) =>
    `${source} ${destinationText(key, destination)}`;
  const known = isPersistent
    ? destinations.filter((destination) => memory?.has(noteOf(destination)))
    : [];
  return (known.length > 0 ? known : destinations).map((destination) => ({
    ...state,
    destination: destination.address,
    // ip_vs_sched_persist: dport = dst_port; if (dport == svc->port && dest->port) dport = dest->port
    port: destination.port === 0 || (isPersistent && key.kind === 'mark') ? port : destination.port,
    translated: true,
    addedEntries: isPersistent
      ? new Set([...state.addedEntries, noteOf(destination)])
      : state.addedEntries,
  }));
}
