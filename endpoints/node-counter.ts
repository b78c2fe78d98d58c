/** How many nodes the cluster has, as far as EndpointSlices tell. */
import type { ApiObject, EndpointSlice, Kind, ObjectKey } from '../api/objects.ts';

/**
 * Counts the nodes that have endpoints: how many nodes the cluster has, at least. An agent that watches no other Node than its
 * own knows nothing better, and EndpointSlices it has anyway. A sink for objects; it keeps no copies.
 */
export class NodeCounter {
  readonly #slices = new Map<ObjectKey, EndpointSlice>();
  /** Endpoints by node. */
  readonly #endpoints = new Map<string, number>();

  get nodes(): number {
    return this.#endpoints.size;
  }

  upsert(object: ApiObject): void {
    if (object.kind !== 'EndpointSlice') return;
    this.remove('EndpointSlice', object.key);
    this.#slices.set(object.key, object);
    this.#add(object, 1);
  }

  remove(kind: Kind, key: ObjectKey): void {
    if (kind !== 'EndpointSlice') return;
    const slice = this.#slices.get(key);
    if (slice === undefined) return;
    this.#slices.delete(key);
    this.#add(slice, -1);
  }

  /** A count of what is known by then is as good as any. */
  synced(): void {}

  #add({ endpoints }: EndpointSlice, change: number): void {
    for (const { nodeName } of endpoints) {
      if (nodeName === undefined) continue;
      const count = (this.#endpoints.get(nodeName) ?? 0) + change;
      if (count > 0) this.#endpoints.set(nodeName, count);
      else this.#endpoints.delete(nodeName);
    }
  }
}
