import { DIRECTIONS, type Direction, type ListNumber, type PolicyElement } from './shape.ts';

/** A port that a list names, of a pod. */
export interface NamedMember {
  readonly list: ListNumber;
  /** As IP numbers it. */
  readonly protocol: number;
  readonly port: number;
}

/** All that the kernel is told of one address. Pods of one shape share it. */
export interface Facts {
  /** Lists of peers that the address is in. */
  readonly peers: readonly ListNumber[];
  readonly named: readonly NamedMember[];
  /** It is a pod's of this node. */
  readonly own: boolean;
  /** Numbers of the profiles that judge the pod. */
  readonly profiles: Readonly<Partial<Record<Direction, number>>>;
}

export const NO_FACTS: Facts = { peers: [], named: [], own: false, profiles: {} };

export function* elementsOf(address: string, facts: Facts): Iterable<PolicyElement> {
  if (facts.own) yield { set: 'own', address };
  for (const direction of DIRECTIONS) {
    const profile = facts.profiles[direction];
    if (profile !== undefined) yield { set: `${direction}-pods`, address, profile };
  }
  for (const list of facts.peers) yield { set: 'peers', list, address };
  for (const member of facts.named) yield { set: 'named-ports', address, ...member };
}

/** What of `a` is not in `b`. */
export function without(a: Facts, b: Facts): Facts {
  const profiles: Partial<Record<Direction, number>> = {};
  for (const direction of DIRECTIONS) {
    const profile = a.profiles[direction];
    if (profile !== undefined && profile !== b.profiles[direction]) profiles[direction] = profile;
  }
  const peers = new Set(b.peers);
  const named = new Set(b.named.map(memberKey));
  return {
    peers: a.peers === b.peers ? [] : a.peers.filter((list) => !peers.has(list)),
    named: a.named === b.named ? [] : a.named.filter((member) => !named.has(memberKey(member))),
    own: a.own && !b.own,
    profiles,
  };
}

function memberKey({ list, protocol, port }: NamedMember): string {
  return `${list} ${protocol} ${port}`;
}
