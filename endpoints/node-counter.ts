/** Estimates the number of nodes in the cluster from EndpointSlices. */
import type { ApiObject, EndpointSlice, Kind, ObjectKey } from '../api/objects.ts';

/**
 * Counts the nodes that have endpoints, a lower bound of the nodes in the cluster. Without network policy the agent
 * watches only its own Node object, but it has all EndpointSlices anyway. An object sink that keeps references to the
 * EndpointSlices, not copies.
 */
export class NodeCounter {
  readonly #slices = new Map<ObjectKey, EndpointSlice>();
  /** Number of endpoints by node name. */
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

  /** Nothing to do: the count is usable at any time. */
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
