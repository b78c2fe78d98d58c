/**
 * Follows the first packet of a connection through the rules of the iptables mode, on every
 * possible path. As in the kernel, these are nat PREROUTING or OUTPUT, the chains of filter, and
 * nat POSTROUTING.
 */
import type { Table } from '../../iptables/chains.ts';
import { outcomeText, type Packet } from '../traffic/expected-outcome.ts';
import { type Chains, newState, type PacketState, parseChains, walk } from './chain-walk.ts';

/** One path of a packet, and the affinity entries that the kernel adds on it. */
export interface PacketPath {
  readonly outcome: string;
  readonly affinityEntries: ReadonlySet<string>;
}

/** Parsed rules, and the addresses of the node. */
export interface Tables {
  readonly nat: Chains;
  readonly filter: Chains;
  readonly local: ReadonlySet<string>;
}

/** Parses the lines of two tables, `:CHAIN` and `-A CHAIN …`. */
export function parseTables(
  linesOf: (table: Table) => readonly string[],
  local: ReadonlySet<string>,
): Tables {
  return { nat: parseChains(linesOf('nat')), filter: parseChains(linesOf('filter')), local };
}

/** All outcomes that a packet may have, as worded by `outcomeText`. */
export function trace(tables: Tables, packet: Packet): Set<string> {
  return new Set(packetPaths(tables, packet).map(({ outcome }) => outcome));
}

/** All paths that a packet may take. */
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

function finish(tables: Tables, chainsToWalk: readonly string[], state: PacketState): PacketPath[] {
  const [chain, ...further] = chainsToWalk;
  if (chain === undefined) {
    const { destination: address, port, addedEntries } = state;
    const translated = state.translated ? { address, port } : undefined;
    return [{ outcome: outcomeText({ ...state, translated }), affinityEntries: addedEntries }];
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
