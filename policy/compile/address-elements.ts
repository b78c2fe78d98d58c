/** The set elements of one address. */
import { type AddressEntry, EMPTY_ENTRY, type NamedPortMember } from '../model/memberships.ts';
import { DIRECTIONS } from '../model/terms.ts';
import type { PolicyElement } from './change.ts';

/** Elements of one address entry that another entry does not have. */
export function* addressElements(
  address: string,
  entry: AddressEntry,
  other: AddressEntry = EMPTY_ENTRY,
): Iterable<PolicyElement> {
  if (entry.isLocalPod && !other.isLocalPod) yield { set: 'hairpin-pods', address };
  if (isSelected(entry) && !isSelected(other)) yield { set: 'selected-pods', address };
  if (bypassesDns(entry) && !bypassesDns(other)) yield { set: 'dns-bypass', address };
  for (const direction of DIRECTIONS) {
    const policySetId = entry.policySets[direction];
    if (policySetId !== undefined && policySetId !== other.policySets[direction]) {
      yield { set: `${direction}-pods`, address, policySetId };
    }
  }
  if (entry.peers !== other.peers) {
    const peers = new Set(other.peers);
    for (const list of entry.peers) if (!peers.has(list)) yield { set: 'peers', list, address };
  }
  if (entry.namedPorts !== other.namedPorts) {
    const others = new Set(other.namedPorts.map(memberKey));
    for (const member of entry.namedPorts) {
      if (!others.has(memberKey(member))) yield { set: 'named-ports', address, ...member };
    }
  }
}

function isSelected({ policySets }: AddressEntry): boolean {
  return DIRECTIONS.some((direction) => policySets[direction] !== undefined);
}

function bypassesDns({ isLocalPod, usesNames }: AddressEntry): boolean {
  return isLocalPod && !usesNames;
}

function memberKey({ list, protocol, port }: NamedPortMember): string {
  return `${list} ${protocol} ${port}`;
}
