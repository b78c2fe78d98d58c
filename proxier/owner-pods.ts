/**
 * The Pods of namespaces that have Services with owned ports, by address. An endpoint owns ports only if one of them has
 * its address.
 */
import { getOrCreate } from '../api/collections.ts';
import { namespaceOf, type ObjectKey } from '../api/objects.ts';
import type { Pod } from '../api/policy-objects.ts';
import { type AddressHolder, type AddressHolders, holderAmong } from '../endpoints/slice-owners.ts';
import type { PodWatches } from '../sources/source.ts';
import type { Timers } from '../sync/timers.ts';

/**
 * Milliseconds to wait for the Pods of a namespace, as long as for the Node object at the start. A namespace whose Pods
 * cannot be listed must not hold up other Services.
 */
export const LIST_TIMEOUT = 30_000;

/**
 * Milliseconds for which the watch of a namespace outlives its last Service with owned ports. A Service that changes to and
 * fro must not make every node list the Pods each time.
 */
const KEEP_WATCH = 30_000;

interface Namespace {
  /** Services with owned ports. */
  readonly services: Set<ObjectKey>;
  readonly pods: Map<ObjectKey, Pod>;
  /** Usually one pod. While an address is reused, the old pod may still have it. */
  readonly byAddress: Map<string, readonly Pod[]>;
  /** `failed`: forbidden, or not listed within `LIST_TIMEOUT`. */
  state: 'listing' | 'failed' | 'listed';
  timer: unknown;
  /** Ends the watch; undefined while a Service needs it. */
  endTimer: unknown;
}

export class OwnerPods implements AddressHolders {
  readonly #namespaces = new Map<string, Namespace>();
  readonly #timers: Timers | undefined;
  readonly #onSettled: (services: Iterable<ObjectKey>) => void;
  #watches: PodWatches | undefined;
  /** Namespaces that the first sync waits for; undefined before all other kinds are listed. */
  #awaited: Set<string> | undefined;

  /**
   * @param timers limit the wait for lists; without timers there is no limit.
   * @param onSettled Called with the Services of a namespace when its Pods are listed, or when the wait is over.
   */
  constructor(timers: Timers | undefined, onSettled: (services: Iterable<ObjectKey>) => void) {
    this.#timers = timers;
    this.#onSettled = onSettled;
  }

  /**
   * Lets the source watch the Pods of namespaces with owned ports only. Without watches, all Pods are stored, and all
   * namespaces count as listed. Call it before the first object.
   */
  useWatches(watches: PodWatches): void {
    this.#watches = watches;
  }

  /** Namespaces whose Pods the first sync still waits for. */
  get awaited(): ReadonlySet<string> {
    return this.#awaited ?? NO_NAMESPACES;
  }

  /** Records whether a Service has owned ports. Watches the Pods of its namespace from the first Service to the last. */
  setService(key: ObjectKey, namespace: string, ownsPorts: boolean): void {
    const known = this.#namespaces.get(namespace);
    if (!ownsPorts) {
      if (known?.services.delete(key) === true && known.services.size === 0)
        this.#endLater(namespace, known);
      return;
    }
    const watched = known ?? this.#namespaceOf(namespace);
    const isFirst = watched.services.size === 0 && watched.endTimer === undefined;
    watched.services.add(key);
    this.#timers?.clear(watched.endTimer);
    watched.endTimer = undefined;
    if (!isFirst || this.#watches === undefined) return;
    if (this.#awaited !== undefined) this.#limitWait(namespace);
    this.#watches.begin(namespace, () => this.#failed(namespace));
  }

  /** Whether the owners in a namespace can be decided: its Pods are listed, or the wait for them is over. */
  isSettled(namespace: string): boolean {
    return this.#namespaces.get(namespace)?.state !== 'listing';
  }

  /** Starts to wait for the Pods of the namespaces known so far. Call it when all other kinds are listed. */
  awaitLists(): void {
    const listing = [...this.#namespaces].filter(([, { state }]) => state === 'listing');
    this.#awaited = new Set(listing.map(([namespace]) => namespace));
    for (const namespace of this.#awaited) this.#limitWait(namespace);
  }

  /** @param namespace undefined: the Pods of all namespaces. */
  listed(namespace: string | undefined): void {
    for (const each of namespace === undefined ? [...this.#namespaces.keys()] : [namespace])
      this.#settle(each, 'listed');
  }

  /** Adds or changes a Pod. @returns addresses that have another holder now. */
  upsert(pod: Pod): Set<string> {
    if (!this.#stores(pod.namespace)) return new Set();
    return this.#replace(pod.namespace, pod.key, pod);
  }

  /** Removes a Pod. @returns addresses that have another holder now. */
  remove(key: ObjectKey): Set<string> {
    const namespace = namespaceOf(key);
    return this.#namespaces.has(namespace) ? this.#replace(namespace, key, undefined) : new Set();
  }

  holderOf(namespace: string, address: string): AddressHolder {
    const known = this.#namespaces.get(namespace);
    if (known === undefined) return 'none';
    return known.state === 'listed' ? holderAmong(known.byAddress.get(address) ?? []) : 'unknown';
  }

  #stores(namespace: string): boolean {
    return this.#watches === undefined || this.#namespaces.has(namespace);
  }

  #namespaceOf(namespace: string): Namespace {
    return getOrCreate(this.#namespaces, namespace, () => ({
      services: new Set(),
      pods: new Map(),
      byAddress: new Map(),
      state: this.#watches === undefined ? 'listed' : 'listing',
      timer: undefined,
      endTimer: undefined,
    }));
  }

  #replace(namespace: string, key: ObjectKey, pod: Pod | undefined): Set<string> {
    const known = this.#namespaceOf(namespace);
    const before = known.pods.get(key);
    const addresses = new Set([...addressesOf(before), ...addressesOf(pod)]);
    const holders = new Map(
      [...addresses].map((address) => [address, this.holderOf(namespace, address)]),
    );
    if (pod === undefined) known.pods.delete(key);
    else known.pods.set(key, pod);
    for (const address of addresses) {
      const others = (known.byAddress.get(address) ?? []).filter((each) => each.key !== key);
      const all =
        pod !== undefined && addressesOf(pod).includes(address) ? [...others, pod] : others;
      if (all.length > 0) known.byAddress.set(address, all);
      else known.byAddress.delete(address);
    }
    const changed = [...addresses].filter(
      (address) => this.holderOf(namespace, address) !== holders.get(address),
    );
    if (this.#watches === undefined && known.services.size === 0 && known.pods.size === 0)
      this.#namespaces.delete(namespace);
    return new Set(changed);
  }

  #limitWait(namespace: string): void {
    const known = this.#namespaces.get(namespace);
    if (known === undefined || this.#timers === undefined) return;
    known.timer = this.#timers.set(() => this.#failed(namespace), LIST_TIMEOUT);
  }

  /** Ends the wait for the Pods of a namespace. Pods that were listed stay known. */
  #failed(namespace: string): void {
    if (this.#namespaces.get(namespace)?.state === 'listing') this.#settle(namespace, 'failed');
  }

  #settle(namespace: string, state: 'failed' | 'listed'): void {
    const known = this.#namespaces.get(namespace);
    if (known === undefined || known.state === state) return;
    this.#timers?.clear(known.timer);
    known.state = state;
    this.#awaited?.delete(namespace);
    this.#onSettled(known.services);
  }

  #endLater(namespace: string, known: Namespace): void {
    this.#awaited?.delete(namespace);
    if (this.#watches === undefined || this.#timers === undefined) this.#end(namespace);
    else known.endTimer = this.#timers.set(() => this.#end(namespace), KEEP_WATCH);
  }

  #end(namespace: string): void {
    if (this.#watches === undefined) {
      if (this.#namespaces.get(namespace)?.pods.size === 0) this.#namespaces.delete(namespace);
      return;
    }
    this.#timers?.clear(this.#namespaces.get(namespace)?.timer);
    this.#namespaces.delete(namespace);
    this.#awaited?.delete(namespace);
    this.#watches.end(namespace);
  }
}

const NO_NAMESPACES: ReadonlySet<string> = new Set();

/** The addresses that a pod holds: the addresses of a finished pod may already belong to another pod. */
function addressesOf(pod: Pod | undefined): readonly string[] {
  return pod === undefined || pod.finished ? [] : pod.addresses;
}
