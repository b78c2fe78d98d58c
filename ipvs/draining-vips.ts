/** VIPs that stay bound until their connections end. */
import { getOrCreate } from '../api/collections.ts';
import type { ObjectKey } from '../api/objects.ts';
import type { RefusalState } from '../proxier/backend.ts';
import type { DesiredItems } from './desired-items.ts';
import type { IpvsItem } from './items.ts';

/**
 * VIPs without a Route that stay bound while they have connections, and take no new connections.
 * IPVS sees only packets to local addresses, so unbinding a VIP cuts its connections. For a deleted
 * Service the VIP is unbound at once, as in kube-proxy, because another host may already own the
 * VIP. A refused Service keeps its connections, as in the other modes, and so does an all-ports or
 * port-range Service that is served without the VIP.
 */
export class DrainingVips {
  readonly #desired: DesiredItems;
  /** Services that are refused as a whole. */
  readonly #refusedServices = new Set<ObjectKey>();
  /** Former Services by VIP; an empty set if an earlier agent or kube-proxy bound the VIP. */
  readonly #owners = new Map<string, Set<ObjectKey>>();
  /** The same, by Service. */
  readonly #byService = new Map<ObjectKey, Set<string>>();
  /**
   * VIPs whose Service is served without them. IPVS counts connections of a fwmark service for all VIPs
   * together, so only conntrack tells whether such a VIP has connections.
   */
  readonly #inConntrack = new Set<string>();

  constructor(desired: DesiredItems) {
    this.#desired = desired;
  }

  /**
   * Records which Services are refused as a whole, served again, or deleted. The VIPs of a deleted
   * Service stop draining.
   */
  setRefusedServices(changes: ReadonlyMap<ObjectKey, RefusalState>): void {
    for (const [key, state] of changes) {
      if (state === 'refused') this.#refusedServices.add(key);
      else this.#refusedServices.delete(key);
      if (state === 'served') this.#serveAgain(key);
      if (state === 'deleted') this.deleteService(key);
    }
  }

  #serveAgain(key: ObjectKey): void {
    for (const vip of this.#byService.get(key) ?? []) this.#inConntrack.add(vip);
  }

  /** Stops keeping the VIPs of a Service. */
  deleteService(key: ObjectKey): void {
    const vips = this.#byService.get(key) ?? [];
    this.#byService.delete(key);
    for (const vip of vips) {
      const owners = this.#owners.get(vip);
      owners?.delete(key);
      if (owners?.size === 0) this.release(vip);
    }
  }

  /** Whether a Service is refused as a whole. */
  isRefused(service: ObjectKey): boolean {
    return this.#refusedServices.has(service);
  }

  /** Whether VIPs of a Service are kept. */
  keepsFor(service: ObjectKey): boolean {
    return this.#byService.has(service);
  }

  /**
   * Keeps VIPs that a Service has bound and loses, because it is refused or served without them. Call it before its Route
   * changes.
   */
  retain(service: ObjectKey, vips: readonly string[]): void {
    for (const vip of vips) {
      this.#track(vip).add(service);
      getOrCreate(this.#byService, service, () => new Set<string>()).add(vip);
      if (!this.isRefused(service)) this.#inConntrack.add(vip);
    }
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
    if (!this.#forget(vip)) return;
    for (const item of bindingItems(vip)) this.#desired.removeReference(item);
  }

  #forget(vip: string): boolean {
    this.#inConntrack.delete(vip);
    for (const service of this.#owners.get(vip) ?? []) {
      const vips = this.#byService.get(service);
      vips?.delete(vip);
      if (vips?.size === 0) this.#byService.delete(service);
    }
    return this.#owners.delete(vip);
  }

  /**
   * Looks for connections to VIPs whose Service is served without them, so that `takeIdle` takes those
   * without any. Call it rarely: the kernel walks all of conntrack if there are such VIPs.
   * @throws (rejection) whatever `connectedVips` throws.
   */
  async checkConntrack(
    connectedVips: (vips: ReadonlySet<string>) => Promise<ReadonlySet<string>>,
  ): Promise<void> {
    if (this.#inConntrack.size === 0) return;
    const checked = new Set(this.#inConntrack);
    const connected = await connectedVips(checked);
    for (const vip of checked) if (!connected.has(vip)) this.#inConntrack.delete(vip);
  }

  /**
   * Stops keeping VIPs without connections, and VIPs that their Service binds again.
   * @param hasConnections whether destinations of services with this VIP drain.
   * @returns items that are no longer desired, for the caller to remove from the kernel.
   */
  takeIdle(hasConnections: (vip: string) => boolean): IpvsItem[] {
    const isUsed = (vip: string) => this.#inConntrack.has(vip) && !this.#desired.isShared(vip);
    const idle = this.vips.filter((vip) => !hasConnections(vip) && !isUsed(vip));
    for (const vip of idle) this.#forget(vip);
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
