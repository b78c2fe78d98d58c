/**
 * Assigns the slices of owned ports to endpoints: the ordinal of the owner is the number of the slice. Pure, and the
 * same on every node: ordinals come from names, and nothing is negotiated. Only pods of the host network may differ, because
 * an agent without network policy knows the addresses of its own Node only.
 */
import { compareAddresses } from '../api/addresses.ts';
import { type Candidate, type NodeTopology, readiness } from './select.ts';

export type OwnerNode = 'this' | 'other' | 'unknown';

/** The owner of the slices with its ordinal. */
export interface SliceOwner {
  readonly ordinal: number;
  readonly address: string;
  /** Whether the owner gets packets: it is ready, or it terminates while serving. Other owners still speak. */
  readonly serves: boolean;
  /** The node of the owner, as seen from this node; EndpointSlices need not name it. */
  readonly node: OwnerNode;
}

/** An endpoint that owns nothing. */
export interface EndpointWithoutSlice {
  readonly address: string;
  readonly reason:
    | 'has no ordinal in its name'
    | 'has an ordinal past the last slice'
    | 'has the address of this node'
    | 'has the address of another node'
    | 'has the ordinal of another endpoint';
  readonly ordinal: number | undefined;
}

/** Owners by ordinal, in ascending order, and the endpoints that own nothing, in the order of candidates. */
export interface SliceOwners {
  readonly owners: readonly SliceOwner[];
  readonly others: readonly EndpointWithoutSlice[];
}

/**
 * Assigns slices. Two endpoints have one ordinal while a name is handed over: the ready one owns the slice, else the one
 * that still serves, else the one with the lower address.
 * @param candidates from `candidatesForAllPorts`.
 * @param slices number of slices of the range that has most.
 * @param node this node, with the addresses of other nodes as far as they are known.
 * @param nodeAddresses addresses of this node: a pod of the host network cannot own ports, because the node speaks from
 * its address.
 */
export function sliceOwners(
  candidates: readonly Candidate[],
  slices: number,
  { name: nodeName, otherNodes }: NodeTopology,
  nodeAddresses: ReadonlySet<string>,
): SliceOwners {
  const owners = new Map<number, Candidate>();
  const others: EndpointWithoutSlice[] = [];
  const exclude = ({ address, ordinal }: Candidate, reason: EndpointWithoutSlice['reason']) =>
    others.push({ address, reason, ordinal });
  for (const candidate of candidates) {
    const { ordinal } = candidate;
    if (nodeAddresses.has(candidate.address)) exclude(candidate, 'has the address of this node');
    else if (otherNodes?.has(candidate.address) === true)
      exclude(candidate, 'has the address of another node');
    else if (ordinal === undefined) exclude(candidate, 'has no ordinal in its name');
    else if (ordinal >= slices) exclude(candidate, 'has an ordinal past the last slice');
    else {
      const known = owners.get(ordinal);
      const isOwner = known === undefined || ownsBefore(candidate, known);
      if (isOwner) owners.set(ordinal, candidate);
      const loser = isOwner ? known : candidate;
      if (loser !== undefined) exclude(loser, 'has the ordinal of another endpoint');
    }
  }
  return {
    owners: [...owners]
      .sort(([a], [b]) => a - b)
      .map(([ordinal, { address, nodeName: on, ...endpoint }]) => ({
        ordinal,
        address,
        serves: readiness(endpoint) > 0,
        node: on === undefined ? ('unknown' as const) : on === nodeName ? 'this' : 'other',
      })),
    others,
  };
}

function ownsBefore(a: Candidate, b: Candidate): boolean {
  const difference = readiness(a) - readiness(b);
  return difference !== 0 ? difference > 0 : compareAddresses(a.address, b.address) < 0;
}
