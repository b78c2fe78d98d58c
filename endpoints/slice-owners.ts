/**
 * Assigns the slices of owned ports to endpoints: the ordinal of the owner is the number of the slice. Pure, and the
 * same on every node: ordinals come from names, and nothing is negotiated.
 *
 * Only pods of the Service's namespace own ports. EndpointSlices may name any address, so a tenant could otherwise
 * take the UDP packets of other tenants' pods and VIPs.
 */
import { compareAddresses } from '../api/addresses.ts';
import type { Pod } from '../api/policy-objects.ts';
import { type Candidate, readiness } from './select.ts';

export type OwnerNode = 'this' | 'other' | 'unknown';

/** Which pods of a namespace have an address; `unknown` if the pods could not be listed. */
export type AddressHolder = 'pod' | 'host network' | 'none' | 'unknown';

/** The pods of namespaces with owned ports, by address. */
export interface AddressHolders {
  holderOf(namespace: string, address: string): AddressHolder;
}

/** Which of the pods with one address holds it. A pod on the host network shares the address of its node. */
export function holderAmong(pods: Iterable<Pick<Pod, 'hostNetwork'>>): AddressHolder {
  let holder: AddressHolder = 'none';
  for (const { hostNetwork } of pods) {
    if (!hostNetwork) return 'pod';
    holder = 'host network';
  }
  return holder;
}

/** Why an endpoint owns nothing, whatever its ordinal. */
export const HOLDER_REASONS = {
  none: 'has no pod in its namespace',
  'host network': 'is on the host network',
  unknown: 'is in a namespace whose pods cannot be listed',
} as const satisfies Record<Exclude<AddressHolder, 'pod'>, string>;

/** The owner of the slices with its ordinal. */
export interface SliceOwner {
  readonly ordinal: number;
  readonly address: string;
  /** Whether the owner gets packets: it is ready, or it terminates while serving. Other owners still speak. */
  readonly serves: boolean;
  /** The node of the owner, as seen from this node; EndpointSlices need not name it. */
  readonly node: OwnerNode;
}

/**
 * The owners of each ordinal before and after a change.
 * @param before, after In ascending order of ordinals.
 */
export function* ownerPairs(
  before: readonly SliceOwner[],
  after: readonly SliceOwner[],
): Iterable<readonly [before: SliceOwner | undefined, after: SliceOwner | undefined]> {
  let [i, j] = [0, 0];
  while (i < before.length || j < after.length) {
    const [old, now] = [before[i], after[j]];
    const ordinal = Math.min(old?.ordinal ?? Infinity, now?.ordinal ?? Infinity);
    const pair = [old, now].map((owner) => (owner?.ordinal === ordinal ? owner : undefined));
    if (pair[0] !== undefined) i += 1;
    if (pair[1] !== undefined) j += 1;
    yield [pair[0], pair[1]];
  }
}

export function isSameOwner(a: SliceOwner | undefined, b: SliceOwner | undefined): boolean {
  if (a === undefined || b === undefined) return a === b;
  return a.address === b.address && a.serves === b.serves && a.node === b.node;
}

/** An endpoint that owns nothing. */
export interface EndpointWithoutSlice {
  readonly address: string;
  readonly reason:
    | (typeof HOLDER_REASONS)[keyof typeof HOLDER_REASONS]
    | 'has no ordinal in its name'
    | 'has an ordinal past the last slice'
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
 * @param nodeName name of this node.
 * @param holderOf which pods of the Service's namespace have an address. A pod on the host network cannot own ports,
 * because its node speaks from the address.
 */
export function sliceOwners(
  candidates: readonly Candidate[],
  slices: number,
  nodeName: string,
  holderOf: (address: string) => AddressHolder,
): SliceOwners {
  const owners = new Map<number, Candidate>();
  const others: EndpointWithoutSlice[] = [];
  const exclude = ({ address, ordinal }: Candidate, reason: EndpointWithoutSlice['reason']) =>
    others.push({ address, reason, ordinal });
  for (const candidate of candidates) {
    const { ordinal } = candidate;
    const holder = holderOf(candidate.address);
    if (holder !== 'pod') exclude(candidate, HOLDER_REASONS[holder]);
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
