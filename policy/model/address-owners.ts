/**
 * Decides which pod owns an address. The API may show two pods with one address for a while: the
 * address is assigned to a new pod before the watch reports the end of the old pod. The pod that
 * was created later owns the address.
 */
import { compareText } from '../../api/collections.ts';

/** A pod that lists an address in its status. */
export interface AddressCandidate {
  readonly pod: { readonly key: string; readonly creationTimestamp: string };
}

export class AddressOwners<T extends AddressCandidate> {
  readonly #owners = new Map<string, T>();
  /** Candidates of each address that has more than one candidate. The owner is the last. */
  readonly #candidates = new Map<string, readonly T[]>();

  add(address: string, candidate: T): void {
    const owner = this.#owners.get(address);
    if (owner === undefined) this.#owners.set(address, candidate);
    else this.#electOwner(address, [...(this.#candidates.get(address) ?? [owner]), candidate]);
  }

  remove(address: string, candidate: T): void {
    const candidates = this.#candidates.get(address);
    if (candidates === undefined) this.#owners.delete(address);
    else
      this.#electOwner(
        address,
        candidates.filter((each) => each !== candidate),
      );
  }

  owner(address: string): T | undefined {
    return this.#owners.get(address);
  }

  #electOwner(address: string, candidates: readonly T[]): void {
    const sorted = candidates.toSorted(
      (a, b) => compareText(createdAt(a), createdAt(b)) || compareText(a.pod.key, b.pod.key),
    );
    this.#owners.set(address, sorted.at(-1) as T);
    if (sorted.length > 1) this.#candidates.set(address, sorted);
    else this.#candidates.delete(address);
  }
}

/**
 * Creation time of a pod, for comparison. A pod without a timestamp, as usual with `--manifests`,
 * counts as the newest.
 */
function createdAt({ pod }: AddressCandidate): string {
  return pod.creationTimestamp || '~';
}
