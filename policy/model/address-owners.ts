/**
 * Which pod owns which address. For a while the API may show two pods with one address: it is given to a
 * new pod before the watch reports the end of the old one. The pod that was created later owns it.
 */
import { compareText } from '../../api/collections.ts';

/** A pod that has an address, or a newer owner of it. */
export interface Claimant {
  readonly pod: { readonly key: string; readonly creationTimestamp: string };
}

export class AddressOwners<T extends Claimant> {
  readonly #owners = new Map<string, T>();
  /** All claimants of addresses that several claim, the owner last. */
  readonly #contested = new Map<string, readonly T[]>();

  claim(address: string, claimant: T): void {
    const owner = this.#owners.get(address);
    if (owner === undefined) this.#owners.set(address, claimant);
    else this.#settle(address, [...(this.#contested.get(address) ?? [owner]), claimant]);
  }

  release(address: string, claimant: T): void {
    const claimants = this.#contested.get(address);
    if (claimants === undefined) this.#owners.delete(address);
    else
      this.#settle(
        address,
        claimants.filter((each) => each !== claimant),
      );
  }

  owner(address: string): T | undefined {
    return this.#owners.get(address);
  }

  #settle(address: string, claimants: readonly T[]): void {
    const sorted = claimants.toSorted(
      (a, b) => compareText(createdAt(a), createdAt(b)) || compareText(a.pod.key, b.pod.key),
    );
    this.#owners.set(address, sorted.at(-1) as T);
    if (sorted.length > 1) this.#contested.set(address, sorted);
    else this.#contested.delete(address);
  }
}

/** A pod without a timestamp (a manifest) was never created by an API server: it is the youngest. */
function createdAt({ pod }: Claimant): string {
  return pod.creationTimestamp || '~';
}
