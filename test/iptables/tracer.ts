/**
 * Follows the first packet of a connection through the rules of the iptables mode, every way it may
 * go, as the kernel would: nat PREROUTING or OUTPUT, the chains of filter, nat POSTROUTING.
 */
import type { Table } from '../../iptables/chains.ts';
import { outcomeText, type Packet } from '../traffic/expected-outcome.ts';
import { type Chains, newState, type PacketState, parseChains, walk } from './chain-walk.ts';

/** One way a packet may go, and what the kernel remembers of it for affinity. */
export interface PacketPath {
  readonly outcome: string;
  readonly affinityEntries: ReadonlySet<string>;
}

/** Rules as values, and the addresses that the node holds. */
export interface Tables {
  readonly nat: Chains;
  readonly filter: Chains;
  readonly local: ReadonlySet<string>;
}

/** Reads the lines of two tables, `:CHAIN` and `-A CHAIN …`. */
export function parseTables(
  linesOf: (table: Table) => readonly string[],
  local: ReadonlySet<string>,
): Tables {
  return { nat: parseChains(linesOf('nat')), filter: parseChains(linesOf('filter')), local };
}

/** The fates that a packet may meet, as `fateText` words them. */
export function trace(tables: Tables, packet: Packet): Set<string> {
  return new Set(packetPaths(tables, packet).map(({ outcome: fate }) => fate));
}

/** Every way that a packet may go. */
export function packetPaths({ nat, filter, local }: Tables, packet: Packet): PacketPath[] {
  const start = newState(packet, local);
  const isOwn = packet.inInterface === undefined;
  return [...walk(nat, isOwn ? 'OUTPUT' : 'PREROUTING', start)].flatMap(({ verdict, state }) => {
    if (verdict === 'DROP') throw new Error('table nat cannot drop');
    const arrives = local.has(state.destination);
    const first = isOwn ? ['OUTPUT', 'POSTROUTING'] : arrives ? [] : ['FORWARD', 'POSTROUTING'];
    return finish({ nat, filter, local }, arrives ? [...first, 'INPUT'] : first, state);
  });
}

function finish(tables: Tables, way: readonly string[], state: PacketState): PacketPath[] {
  const [chain, ...further] = way;
  if (chain === undefined) {
    const { destination: address, port, addedEntries: remembered } = state;
    const translated = state.translated ? { address, port } : undefined;
    return [{ outcome: outcomeText({ ...state, translated }), affinityEntries: remembered }];
  }
  const chains = chain === 'POSTROUTING' ? tables.nat : tables.filter;
  return [...walk(chains, chain, state)].flatMap(({ verdict, state: after }) => {
    const passes = verdict === 'RETURN' || verdict === 'ACCEPT';
    if (!passes) return [{ outcome: verdict, affinityEntries: after.addedEntries }];
    const isLast = chain === 'INPUT' || chain === 'FORWARD';
    const accepted = after.accepted || (isLast && verdict === 'ACCEPT');
    const markLeft = after.markLeft || (chain === 'POSTROUTING' && after.mark !== 0);
    return finish(tables, further, { ...after, accepted, markLeft });
  });
}
