/** Elements of sets for one address. */

import { type AddressEntry, EMPTY_ENTRY, type NamedPortMember } from '../model/memberships.ts';
import { DIRECTIONS } from '../model/terms.ts';
import type { PolicyElement } from './change.ts';

/** Elements that an address has with an entry, but not with the other one. */
export function* addressElements(
  address: string,
  entry: AddressEntry,
  other: AddressEntry = EMPTY_ENTRY,
): Iterable<PolicyElement> {
  if (entry.isLocalPod && !other.isLocalPod) yield { set: 'own', address };
  for (const direction of DIRECTIONS) {
    const profile = entry.policySets[direction];
    if (profile !== undefined && profile !== other.policySets[direction]) {
      yield { set: `${direction}-pods`, address, profile };
    }
  }
  if (entry.peers !== other.peers) {
    const peers = new Set(other.peers);
    for (const list of entry.peers) if (!peers.has(list)) yield { set: 'peers', list, address };
  }
  if (entry.namedPorts !== other.namedPorts) {
    const named = new Set(other.namedPorts.map(memberKey));
    for (const member of entry.namedPorts) {
      if (!named.has(memberKey(member))) yield { set: 'named-ports', address, ...member };
    }
  }
}

function memberKey({ list, protocol, port }: NamedPortMember): string {
  return `${list} ${protocol} ${port}`;
}
