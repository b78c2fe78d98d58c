/**
 * Follows the first packet of a connection through the rules, ipsets and services of the ipvs mode,
 * on every possible path. IPVS handles a packet to a local address (VIPs are on the dummy device)
 * after filter INPUT. It handles a packet of a process on the node after nat OUTPUT.
 */
import { getOrCreate } from '../../api/collections.ts';
import type { Table } from '../../iptables/chains.ts';
import { destinationText, type IpvsItem, serviceText } from '../../ipvs/items.ts';
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

/** State of the kernel. */
export interface Kernel {
  readonly chains: Readonly<Record<Table, Chains>>;
  readonly sets: Sets;
  /** By `serviceText`. */
  readonly services: ReadonlyMap<string, Service>;
  /** All local addresses, including those on the dummy device. */
  readonly local: ReadonlySet<string>;
}

/** The IPVS table. */
export function ipvsTable(items: Iterable<IpvsItem>): Kernel['services'] {
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

/** Hooks after IPVS: packets to endpoints leave as if the node had sent them. */
const OUTPUT_HOOKS: readonly Hook[] = ['mangle OUTPUT', 'filter OUTPUT', 'nat POSTROUTING'];

/** All paths that a packet may take. */
export function packetPaths(kernel: Kernel, packet: Packet): PacketPath[] {
  const isOwn = packet.inInterface === undefined;
  const hooks: readonly Hook[] = isOwn
    ? ['mangle OUTPUT', 'nat OUTPUT', 'IPVS', 'filter OUTPUT', 'nat POSTROUTING', 'route']
    : ['mangle PREROUTING', 'nat PREROUTING', 'route'];
  return follow(kernel, hooks, newState(packet, kernel.local, kernel.sets), isOwn);
}

function follow(
  kernel: Kernel,
  hooks: readonly Hook[],
  state: PacketState,
  isOwn: boolean,
): PacketPath[] {
  const [hook, ...further] = hooks;
  if (hook === undefined) {
    const { translated, destination: address, port, masqueraded, accepted, addedEntries } = state;
    const outcome = translated
      ? { translated: { address, port }, masqueraded }
      : { masqueraded, accepted };
    return [{ outcome: outcomeText(outcome), affinityEntries: addedEntries }];
  }
  if (hook === 'route')
    return follow(kernel, hooksAfterRouting(kernel, state, isOwn), arrived(state), isOwn);
  if (hook === 'IPVS') {
    return scheduled(kernel, state).flatMap((answer) => {
      if (answer === 'not scheduled') return follow(kernel, further, state, isOwn);
      if (typeof answer === 'string')
        return [{ outcome: answer, affinityEntries: state.addedEntries }];
      return follow(kernel, OUTPUT_HOOKS, answer, isOwn);
    });
  }
  const [table, chain = ''] = hook.split(' ') as [Table, string];
  return [...walk(kernel.chains[table], chain, state)].flatMap(({ verdict, state: after }) => {
    const passes = verdict === 'RETURN' || verdict === 'ACCEPT';
    if (!passes && table === 'nat') throw new Error('table nat cannot drop');
    if (!passes) return [{ outcome: verdict, affinityEntries: after.addedEntries }];
    const isLast = hook === 'filter INPUT' || hook === 'filter FORWARD';
    const accepted = after.accepted || (isLast && verdict === 'ACCEPT');
    return follow(kernel, further, { ...after, accepted }, isOwn);
  });
}

/**
 * Hooks after routing. A packet of the node to itself comes in again, but has already passed nat.
 */
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

/** What IPVS does with a packet: sends it to a destination, rejects it, or passes it on. */
function scheduled(
  kernel: Kernel,
  state: PacketState,
): (PacketState | 'not scheduled' | `REJECT ${string}`)[] {
  const { destination: vip, source, port, protocol, affinityEntries } = state;
  // ip_vs_schedule skips source port 20, which it takes for FTP data.
  if (!kernel.local.has(vip) || protocol === 'icmp' || state.sourcePort === 20)
    return ['not scheduled'];
  const service =
    kernel.services.get(`FWM ${state.mark}`) ??
    kernel.services.get(`${protocol.toUpperCase()} ${vip}:${port}`);
  if (service === undefined) return ['not scheduled'];
  const { key, isPersistent, destinations } = service;
  if (destinations.length === 0) {
    return [`REJECT ${vip.includes(':') ? 'icmp6' : 'icmp'}-port-unreachable`];
  }
  const affinityEntry = (destination: IpvsDestinationKey) =>
    `${source} ${destinationText(key, destination)}`;
  const known = isPersistent
    ? destinations.filter((destination) => affinityEntries?.has(affinityEntry(destination)))
    : [];
  return (known.length > 0 ? known : destinations).map((destination) => ({
    ...state,
    destination: destination.address,
    // ip_vs_sched_persist: dport = dst_port; if (dport == svc->port && dest->port) dport = dest->port
    port: destination.port === 0 || (isPersistent && key.kind === 'mark') ? port : destination.port,
    translated: true,
    addedEntries: isPersistent
      ? new Set([...state.addedEntries, affinityEntry(destination)])
      : state.addedEntries,
  }));
}
