/** The EndpointSlices of each Service. The label of a slice, and with it its Service, may change. */
import { setList } from '../api/collections.ts';
import type { EndpointSlice, ObjectKey } from '../api/objects.ts';

export class ServiceSlices {
  readonly #slices = new Map<ObjectKey, readonly EndpointSlice[]>();
  /** The Service of each slice. */
  readonly #owners = new Map<ObjectKey, ObjectKey>();

  /** The slices of a Service, whether or not the Service exists. */
  of(service: ObjectKey): readonly EndpointSlice[] {
    return this.#slices.get(service) ?? [];
  }

  /** The Service that a slice belongs to; undefined for an unknown slice. */
  ownerOf(slice: ObjectKey): ObjectKey | undefined {
    return this.#owners.get(slice);
  }

  /** Adds a slice or replaces a slice of the same Service. @returns the replaced slice. */
  upsert(slice: EndpointSlice): EndpointSlice | undefined {
    const { key, serviceKey } = slice;
    this.#owners.set(key, serviceKey);
    const slices = this.of(serviceKey);
    const before = slices.find((each) => each.key === key);
    this.#slices.set(serviceKey, slices.filter((each) => each !== before).concat(slice));
    return before;
  }

  /** Removes a slice. @returns the Service it belonged to; undefined for an unknown slice. */
  remove(key: ObjectKey): ObjectKey | undefined {
    const owner = this.#owners.get(key);
    if (owner === undefined) return undefined;
    this.#owners.delete(key);
    const slices = this.of(owner).filter((slice) => slice.key !== key);
    setList(this.#slices, owner, slices);
    return owner;
  }
}
