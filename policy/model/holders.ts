import { compareText } from '../../api/collections.ts';

/** Who may have an address. */
export interface Claimant {
  readonly pod: { readonly key: string; readonly creationTimestamp: string };
}

/**
 * Who has which address. Two pods have one for as long as the API is behind: an address goes from a
 * pod that has ended to a new one before its end is heard of. So the one that was created later has it.
 */
export class AddressHolders<T extends Claimant> {
  readonly #holders = new Map<string, T>();
  /** All claimants of addresses that several claim, the holder last. */
  readonly #contested = new Map<string, readonly T[]>();

  claim(address: string, claimant: T): void {
    const holder = this.#holders.get(address);
    if (holder === undefined) this.#holders.set(address, claimant);
    else this.#settle(address, [...(this.#contested.get(address) ?? [holder]), claimant]);
  }

  release(address: string, claimant: T): void {
    const claimants = this.#contested.get(address);
    if (claimants === undefined) this.#holders.delete(address);
    else
      this.#settle(
        address,
        claimants.filter((each) => each !== claimant),
      );
  }

  holder(address: string): T | undefined {
    return this.#holders.get(address);
  }

  #settle(address: string, claimants: readonly T[]): void {
    const sorted = claimants.toSorted(
      (a, b) => compareText(createdAt(a), createdAt(b)) || compareText(a.pod.key, b.pod.key),
    );
    this.#holders.set(address, sorted.at(-1) as T);
    if (sorted.length > 1) this.#contested.set(address, sorted);
    else this.#contested.delete(address);
  }
}

/** A pod without a timestamp (a manifest) was never created by an API server: it is the youngest. */
function createdAt({ pod }: Claimant): string {
  return pod.creationTimestamp || '~';
}
