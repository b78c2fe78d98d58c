/**
 * Graceful termination of IPVS destinations. A destination that is no longer desired gets weight 0,
 * so that it takes no new connections. It is deleted when its connections have ended, because IPVS
 * cuts the connections of a deleted destination.
 */
import { getOrCreate } from '../api/collections.ts';
import type { Protocol } from '../api/objects.ts';
import type {
  IpvsChange,
  IpvsDestinationKey,
  IpvsDestinationState,
  IpvsServiceKey,
} from '../netlink/ipvs/ipvs.ts';
import { destinationText, type IpvsItem, itemKey, serviceText } from './items.ts';
import type { IpvsKernel } from './kernel.ts';

/**
 * Protocols whose destinations are deleted at once, unless the endpoint still serves. As in
 * kube-proxy: UDP and SCTP clients do not notice that a pod is gone.
 */
const IMMEDIATE_PROTOCOLS: ReadonlySet<Protocol> = new Set(['UDP', 'SCTP']);

function isDeletedImmediately(service: IpvsServiceKey): boolean {
  return service.kind === 'address' && IMMEDIATE_PROTOCOLS.has(service.protocol);
}

/**
 * State of the endpoint behind a destination.
 *
 * - `serving`: it serves or terminates gracefully.
 * - `notServing`: it exists but is not ready. Also used if the Service is gone and the state is
 *   therefore unknown.
 * - `gone`: it is in no EndpointSlice of the Service.
 */
export type EndpointState = 'serving' | 'notServing' | 'gone';

/**
 * Periodic checks since draining started, after which connections to an endpoint in state `gone` are
 * cut. More than one, because a slice is sometimes deleted before its replacement arrives.
 */
const MISSING_CHECKS = 2;

/**
 * Decides whether a draining destination may be deleted.
 * @param isServiceDesired the service stays, without this destination.
 * @param handshakeChecks number of handshake checks since draining started. After
 * `HANDSHAKE_CHECKS` checks, no handshake is in flight.
 * @param periodicChecks number of periodic checks since draining started.
 * @param state connection counts of the kernel. Established TCP and SCTP connections are active;
 * all others, UDP flows included, are inactive.
 */
function canDelete(
  service: IpvsServiceKey,
  isServiceDesired: boolean,
  endpoint: EndpointState,
  {
    handshakeChecks,
    periodicChecks,
  }: Pick<DrainingDestination, 'handshakeChecks' | 'periodicChecks'>,
  state: IpvsDestinationState,
): boolean {
  const { activeConnections: active, inactiveConnections: inactive } = state;
  if (endpoint === 'serving' && isServiceDesired) return active + inactive === 0;
  if (service.kind === 'address') {
    if (isDeletedImmediately(service)) return true;
    // If the Service is gone, another Service may reuse this address and port, so ignore connections
    // already closed and only waiting for their timeout.
    return active + (isServiceDesired ? inactive : 0) === 0;
  }
  // In a fwmark service, UDP flows must move to another endpoint, and TCP connections must survive.
  // Deleting the destination ends UDP flows and TCP connections, and IPVS offers no other way.
  // Connections to a dead pod never end, so waiting for their end would only misdirect UDP flows.
  if (active === 0) return inactive === 0 || handshakeChecks >= HANDSHAKE_CHECKS;
  return endpoint === 'gone' && periodicChecks >= MISSING_CHECKS;
}

interface DrainingDestination {
  readonly destination: IpvsDestinationKey;
  /** Handshake checks since draining started. */
  handshakeChecks: number;
  periodicChecks: number;
}

/**
 * Number of handshake checks. Two, because the first check may run right after draining started.
 */
const HANDSHAKE_CHECKS = 2;

interface DrainingService {
  readonly service: IpvsServiceKey;
  readonly destinations: Map<string, DrainingDestination>;
  /** Items to remove with the last destination, by key: the service itself and its mark record. */
  readonly deferredItems: Map<string, IpvsItem>;
}

/** Access to the IPVS table. */
export type TerminationTable = Pick<IpvsKernel, 'destinations' | 'change' | 'remove'>;

/** Desired state that, besides connections, decides when a destination is deleted. */
export interface DesiredStateView {
  /** Whether a Route references this destination or service. */
  isDesired(key: string): boolean;
  endpointState(service: IpvsServiceKey, destination: IpvsDestinationKey): EndpointState;
}

/** Sets weight 0: the destination takes no new connections. */
function zeroWeight(key: IpvsServiceKey, destination: IpvsDestinationKey): IpvsChange {
  return { op: 'edit-destination', key, destination: { ...destination, weight: 0 } };
}

function deletion(key: IpvsServiceKey, destination: IpvsDestinationKey): IpvsChange {
  return { op: 'delete-destination', key, destination };
}

/** Draining destinations of one family. */
export class GracefulTermination {
  readonly #table: TerminationTable;
  readonly #desired: DesiredStateView;
  readonly #services = new Map<string, DrainingService>();

  constructor(table: TerminationTable, desired: DesiredStateView) {
    this.#table = table;
    this.#desired = desired;
  }

  get isEmpty(): boolean {
    return this.#services.size === 0;
  }

  /**
   * Defers the removal of an item that belongs to a service, while destinations of that service
   * drain.
   * @returns whether the removal is deferred.
   */
  deferRemoval(service: string, item: IpvsItem): boolean {
    const draining = this.#services.get(service);
    draining?.deferredItems.set(itemKey(item), item);
    return draining !== undefined;
  }

  /** VIPs of services with draining destinations. */
  vips(): Set<string> {
    const vips = new Set<string>();
    for (const { service, deferredItems } of this.#services.values()) {
      if (service.kind === 'address') vips.add(service.address);
      for (const item of deferredItems.values()) {
        if (item.kind === 'entry' && item.entry.ip !== undefined) vips.add(item.entry.ip);
      }
    }
    return vips;
  }

  /**
   * Whether the destination with this key drains, or the removal of the item with this key is
   * deferred.
   */
  has(service: string, key: string): boolean {
    const draining = this.#services.get(service);
    return draining?.destinations.has(key) === true || draining?.deferredItems.has(key) === true;
  }

  /**
   * Starts draining destinations that are no longer desired. Deletes destinations that need no
   * draining.
   */
  async start(
    items: readonly { service: IpvsServiceKey; destination: IpvsDestinationKey }[],
  ): Promise<void> {
    const affected = new Set<string>();
    const changes: IpvsChange[] = [];
    for (const { service, destination } of items) {
      const key = serviceText(service);
      const { destinations } = getOrCreate(this.#services, key, () => ({
        service,
        destinations: new Map(),
        deferredItems: new Map(),
      }));
      const text = destinationText(service, destination);
      getOrCreate(destinations, text, () => ({
        destination,
        handshakeChecks: 0,
        periodicChecks: 0,
      }));
      affected.add(key);
      const deletesAtOnce =
        isDeletedImmediately(service) &&
        this.#desired.endpointState(service, destination) !== 'serving';
      changes.push(
        deletesAtOnce ? deletion(service, destination) : zeroWeight(service, destination),
      );
    }
    await this.#table.change(changes);
    await this.check(affected);
  }

  /** Whether handshakes with a draining destination may still be in flight. */
  get needsHandshakeCheck(): boolean {
    for (const { destinations } of this.#services.values()) {
      for (const { handshakeChecks } of destinations.values())
        if (handshakeChecks < HANDSHAKE_CHECKS) return true;
    }
    return false;
  }

  /**
   * Checks destinations whose handshakes may still be in flight. Call it while
   * `needsHandshakeCheck` is true, with the maximum duration of a handshake between calls.
   */
  async checkHandshakes(): Promise<void> {
    const services: string[] = [];
    for (const [key, { destinations }] of this.#services) {
      const recent = [...destinations.values()].filter(
        ({ handshakeChecks }) => handshakeChecks < HANDSHAKE_CHECKS,
      );
      for (const draining of recent) draining.handshakeChecks += 1;
      if (recent.length > 0) services.push(key);
    }
    await this.check(services);
  }

  /** The periodic check of all draining destinations. */
  async checkAll(): Promise<void> {
    for (const { destinations } of this.#services.values()) {
      for (const draining of destinations.values()) draining.periodicChecks += 1;
    }
    await this.check([...this.#services.keys()]);
  }

  /**
   * Reads the connections of services and deletes drained destinations.
   * @param services keys from `serviceText`.
   */
  async check(services: Iterable<string>): Promise<void> {
    for (const key of services) {
      const draining = this.#services.get(key);
      if (draining !== undefined) await this.#checkService(key, draining);
    }
  }

  async #checkService(
    key: string,
    { service, destinations, deferredItems }: DrainingService,
  ): Promise<void> {
    const states = new Map(
      (await this.#table.destinations(service)).map((state) => [
        destinationText(service, state),
        state,
      ]),
    );
    const changes: IpvsChange[] = [];
    const finished: string[] = [];
    for (const [text, draining] of destinations) {
      const { destination } = draining;
      const state = states.get(text);
      const isFinished =
        this.#desired.isDesired(text) ||
        state === undefined ||
        canDelete(
          service,
          this.#desired.isDesired(key),
          this.#desired.endpointState(service, destination),
          draining,
          state,
        );
      if (!isFinished) {
        // Set weight 0 again: the first change may have failed, and full syncs skip draining
        // destinations.
        if (state.weight > 0) changes.push(zeroWeight(service, destination));
        continue;
      }
      finished.push(text);
      if (state === undefined || this.#desired.isDesired(text)) continue;
      changes.push(deletion(service, destination));
    }
    // If the kernel rejects a change, `change` throws, and the next check tries again.
    await this.#table.change(changes);
    for (const text of finished) destinations.delete(text);
    if (destinations.size > 0) return;
    const removable = [...deferredItems].flatMap(([text, item]) =>
      this.#desired.isDesired(text) ? [] : [item],
    );
    await this.#table.remove(removable);
    this.#services.delete(key);
  }
}
