/** VIPs that stay bound until their connections end. */
import type { ObjectKey } from '../api/objects.ts';
import type { DesiredItems } from './desired-items.ts';
import type { IpvsItem } from './items.ts';

/**
 * VIPs without a Route that stay bound while they have connections, and take no new connections.
 * IPVS sees only packets to local addresses, so unbinding a VIP cuts its connections. For a deleted
 * Service the VIP is unbound at once, as in kube-proxy, because another host may already own the
 * VIP. A refused Service keeps its connections, as in the other modes.
 */
export class DrainingVips {
  readonly #desired: DesiredItems;
  /** Services that are refused as a whole. */
  readonly #refusedServices = new Set<ObjectKey>();
  /** Refused Services by VIP; an empty set if an earlier agent or kube-proxy bound the VIP. */
  readonly #owners = new Map<string, Set<ObjectKey>>();

  constructor(desired: DesiredItems) {
    this.#desired = desired;
  }

  /**
   * Records which Services are refused as a whole (true) or no longer refused (false). Services that
   * are no longer refused are served again or deleted, so their VIPs stop draining.
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

  /**
   * Keeps the VIPs that a Route has bound, if its Service is refused. Call it before the Route is
   * removed.
   */
  retain(service: ObjectKey, items: readonly IpvsItem[]): void {
    if (!this.#refusedServices.has(service)) return;
    for (const item of items) if (item.kind === 'address') this.#track(item.address).add(service);
  }

  /**
   * Keeps a VIP that was bound before the agent started. Its Service is unknown and may have been
   * refused since.
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

  /** Stops keeping a VIP; the next sync unbinds it. Does nothing for a VIP that is not kept. */
  release(vip: string): void {
    if (!this.#owners.delete(vip)) return;
    for (const item of bindingItems(vip)) this.#desired.removeReference(item);
  }

  /**
   * Stops keeping VIPs without connections.
   * @returns items that are no longer desired, for the caller to remove from the kernel.
   */
  takeIdle(hasConnections: (vip: string) => boolean): IpvsItem[] {
    const idle = this.vips.filter((vip) => !hasConnections(vip));
    for (const vip of idle) this.#owners.delete(vip);
    return idle
      .flatMap(bindingItems)
      .filter((item) => this.#desired.removeReferenceUnrecorded(item));
  }

  /** VIPs that are kept. */
  get vips(): readonly string[] {
    return [...this.#owners.keys()];
  }

  get size(): number {
    return this.#owners.size;
  }
}

/** The address, and the set entry that makes the rules reject new connections to the address. */
function bindingItems(vip: string): IpvsItem[] {
  return [
    { kind: 'entry', set: 'KUBE-IPVS-IPS', entry: { ip: vip } },
    { kind: 'address', address: vip },
  ];
}
