/** VIPs that stay bound as long as connections to them last. */
import type { ObjectKey } from '../api/objects.ts';
import type { DesiredItems } from './desired-items.ts';
import type { Item } from './items.ts';

/**
 * VIPs without a Route that stay bound as long as connections to them last, and take no new ones. IPVS
 * sees only packets to addresses of the node, so to unbind a VIP cuts its connections. A Service that
 * is deleted is cut so, as by kube-proxy, for its VIP may belong to a host elsewhere by now. One that
 * is refused keeps its connections, as it does in the other modes.
 */
export class DrainingVips {
  readonly #desired: DesiredItems;
  /** Services that are refused as a whole. */
  readonly #refusedServices = new Set<ObjectKey>();
  /** By VIP, the refused Services that had it; none where an earlier agent or kube-proxy bound it. */
  readonly #owners = new Map<string, Set<ObjectKey>>();

  constructor(wanted: DesiredItems) {
    this.#desired = wanted;
  }

  /**
   * Takes note of Services that came to be refused as a whole (true), or are no longer (false): those
   * are served again, or gone, and nothing is kept for them.
   */
  setRefusedServices(changes: ReadonlyMap<ObjectKey, boolean>): void {
    for (const [key, isRefused] of changes) {
      if (isRefused) this.#refusedServices.add(key);
      else if (this.#refusedServices.delete(key)) this.#removeOwner(key);
    }
  }

  #removeOwner(key: ObjectKey): void {
    for (const [vip, owners] of [...this.#owners]) {
      if (owners.delete(key) && owners.size === 0) this.release(vip);
    }
  }

  /** Keeps the VIPs that a Service's Route, which is about to go, has bound, if the Service is refused. */
  retain(service: ObjectKey, items: readonly Item[]): void {
    if (!this.#refusedServices.has(service)) return;
    for (const item of items) if (item.kind === 'address') this.#track(item.address).add(service);
  }

  /**
   * Keeps a VIP that was bound before the agent started: its Service may have been refused since, and
   * nobody knows any more whose it was.
   */
  adopt(vip: string): void {
    this.#track(vip);
  }

  #track(vip: string): Set<ObjectKey> {
    const known = this.#owners.get(vip);
    if (known !== undefined) return known;
    const owners = new Set<ObjectKey>();
    this.#owners.set(vip, owners);
    for (const item of bindingItems(vip)) this.#desired.addReference(item);
    return owners;
  }

  /** No longer keeps a VIP, if it does; the next sync unbinds it. */
  release(vip: string): void {
    if (!this.#owners.delete(vip)) return;
    for (const item of bindingItems(vip)) this.#desired.removeReference(item);
  }

  /**
   * No longer keeps VIPs without connections.
   * @returns what nobody wants any more, for the caller to remove from the kernel.
   */
  takeIdle(hasConnections: (vip: string) => boolean): Item[] {
    const over = this.vips.filter((vip) => !hasConnections(vip));
    for (const vip of over) this.#owners.delete(vip);
    return over
      .flatMap(bindingItems)
      .filter((item) => this.#desired.removeReferenceUnrecorded(item));
  }

  /** The VIPs that are kept. */
  get vips(): readonly string[] {
    return [...this.#owners.keys()];
  }

  get size(): number {
    return this.#owners.size;
  }
}

/** The address, and what has new connections to it rejected. */
function bindingItems(vip: string): Item[] {
  return [
    { kind: 'entry', set: 'KUBE-IPVS-IPS', entry: { ip: vip } },
    { kind: 'address', address: vip },
  ];
}
