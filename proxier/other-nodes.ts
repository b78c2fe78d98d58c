/** Addresses of the Nodes besides the agent's own, as far as a source has them: with network policy, and in manifests. */
import type { ObjectKey } from '../api/objects.ts';

export class OtherNodes {
  readonly #addresses = new Map<ObjectKey, readonly string[]>();
  /** Number of Nodes with an address: a Node may come under a new name before the old one goes. */
  readonly #counts = new Map<string, number>();

  has(address: string): boolean {
    return this.#counts.has(address);
  }

  /**
   * Sets the addresses of a Node; none if it is gone.
   * @returns addresses that a Node has now and none had before, or the other way round.
   */
  set(key: ObjectKey, addresses: readonly string[]): Set<string> {
    const before = this.#addresses.get(key) ?? [];
    if (addresses.length > 0) this.#addresses.set(key, addresses);
    else this.#addresses.delete(key);
    const all = [...new Set([...before, ...addresses])];
    const known = new Set(all.filter((address) => this.has(address)));
    for (const address of new Set(addresses)) this.#add(address, 1);
    for (const address of new Set(before)) this.#add(address, -1);
    return new Set(all.filter((address) => this.has(address) !== known.has(address)));
  }

  #add(address: string, change: 1 | -1): void {
    const count = (this.#counts.get(address) ?? 0) + change;
    if (count === 0) this.#counts.delete(address);
    else this.#counts.set(address, count);
  }
}
