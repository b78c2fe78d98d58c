/** VIPs that stay bound as long as connections to them last. */
import type { ObjectKey } from '../api/objects.ts';
import type { Item } from './items.ts';
import type { Wanted } from './wanted.ts';

/**
 * VIPs without a Route that stay bound as long as connections to them last, and take no new ones. IPVS
 * sees only packets to addresses of the node, so to unbind a VIP cuts its connections. A Service that
 * is deleted is cut so, as by kube-proxy, for its VIP may belong to a host elsewhere by now. One that
 * is refused keeps its connections, as it does in the other modes.
 */
export class LingeringVips {
  readonly #wanted: Wanted;
  /** Services that are refused as a whole. */
  readonly #refused = new Set<ObjectKey>();
  /** By VIP, the refused Services that had it; none where an earlier agent or kube-proxy bound it. */
  readonly #owners = new Map<string, Set<ObjectKey>>();

  constructor(wanted: Wanted) {
    this.#wanted = wanted;
  }

  /**
   * Takes note of Services that came to be refused as a whole (true), or are no longer (false): those
   * are served again, or gone, and nothing is kept for them.
   */
  setRefused(changes: ReadonlyMap<ObjectKey, boolean>): void {
    for (const [key, isRefused] of changes) {
      if (isRefused) this.#refused.add(key);
      else if (this.#refused.delete(key)) this.#forgetService(key);
    }
  }

  #forgetService(key: ObjectKey): void {
    for (const [vip, owners] of [...this.#owners]) {
      if (owners.delete(key) && owners.size === 0) this.release(vip);
    }
  }

  /** Keeps the VIPs that a Service's Route, which is about to go, has bound, if the Service is refused. */
  keep(service: ObjectKey, items: readonly Item[]): void {
    if (!this.#refused.has(service)) return;
    for (const item of items) if (item.kind === 'address') this.#hold(item.address).add(service);
  }

  /**
   * Keeps a VIP that was bound before the agent started: its Service may have been refused since, and
   * nobody knows any more whose it was.
   */
  adopt(vip: string): void {
    this.#hold(vip);
  }

  #hold(vip: string): Set<ObjectKey> {
    const known = this.#owners.get(vip);
    if (known !== undefined) return known;
    const owners = new Set<ObjectKey>();
    this.#owners.set(vip, owners);
    for (const item of binding(vip)) this.#wanted.hold(item);
    return owners;
  }

  /** No longer keeps a VIP, if it does; the next sync unbinds it. */
  release(vip: string): void {
    if (!this.#owners.delete(vip)) return;
    for (const item of binding(vip)) this.#wanted.release(item);
  }

  /**
   * No longer keeps VIPs without connections.
   * @returns what nobody wants any more, for the caller to remove from the kernel.
   */
  settle(hasConnections: (vip: string) => boolean): Item[] {
    const over = this.vips.filter((vip) => !hasConnections(vip));
    for (const vip of over) this.#owners.delete(vip);
    return over.flatMap(binding).filter((item) => this.#wanted.releaseUnnoted(item));
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
function binding(vip: string): Item[] {
  return [
    { kind: 'entry', set: 'KUBE-IPVS-IPS', entry: { ip: vip } },
    { kind: 'address', address: vip },
  ];
}
