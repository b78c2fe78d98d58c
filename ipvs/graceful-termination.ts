/**
 * Graceful termination. A destination that no Route wants any more takes no new connections
 * (weight 0) and goes when the ones that it has are over; deleted at once, it would cut them.
 */
import { getOrCreate } from '../api/collections.ts';
import type { Protocol } from '../api/objects.ts';
import type {
  IpvsChange,
  IpvsDestinationKey,
  IpvsDestinationState,
  IpvsServiceKey,
} from '../netlink/ipvs/ipvs.ts';
import { destinationText, type Item, itemKey, serviceText } from './items.ts';
import type { IpvsKernel } from './kernel.ts';

/** UDP and SCTP: kube-proxy deletes at once, for their clients do not notice that a pod went. */
const IMMEDIATE_PROTOCOLS: ReadonlySet<Protocol> = new Set(['UDP', 'SCTP']);

function isDeletedImmediately(service: IpvsServiceKey): boolean {
  return service.kind === 'address' && IMMEDIATE_PROTOCOLS.has(service.protocol);
}

/**
 * What became of an endpoint: it still serves, or drains by itself; it is there, but not ready, or
 * its Service is gone, so that nobody can tell; or it is in no EndpointSlice of the Service any more.
 */
export type EndpointState = 'alive' | 'unready' | 'gone';

/**
 * Rounds of looking for which an endpoint may be missing. More than one, for slices are now and then
 * deleted before those that take their place arrive.
 */
const MISSING_CHECKS = 2;

/**
 * Whether a destination may be deleted.
 * @param stays the service is still wanted, only not with this destination.
 * @param settles when these are enough, no handshake is under way any more.
 * @param rounds how often all that drain were looked at since this one began to.
 * @param state connections, as the kernel counts them: active are established TCP and SCTP ones,
 * inactive all others, UDP among them.
 */
function canDelete(
  service: IpvsServiceKey,
  stays: boolean,
  life: EndpointState,
  { settles, rounds }: Pick<DrainingDestination, 'settles' | 'rounds'>,
  state: IpvsDestinationState,
): boolean {
  const { activeConnections: active, inactiveConnections: inactive } = state;
  if (life === 'alive' && stays) return active + inactive === 0;
  if (service.kind === 'address') {
    if (isDeletedImmediately(service)) return true;
    // The port may be somebody else's now, who must not wait for what is over but for the timers.
    return active + (stays ? inactive : 0) === 0;
  }
  // UDP flows must move on, TCP connections must live. IPVS can forget one only by destination. To
  // a pod that died no connection ends by itself, and flows would be led astray for its sake.
  if (active === 0) return inactive === 0 || settles >= HANDSHAKE_CHECKS;
  return life === 'gone' && rounds >= MISSING_CHECKS;
}

interface DrainingDestination {
  readonly destination: IpvsDestinationKey;
  /** Calls of `settle` since it began to drain. */
  settles: number;
  rounds: number;
}

/** Two, for the first may come just after it began. */
const HANDSHAKE_CHECKS = 2;

interface DrainingService {
  readonly service: IpvsServiceKey;
  readonly destinations: Map<string, DrainingDestination>;
  /** What goes with the last of them, by key: the service itself, and the record of its mark. */
  readonly rest: Map<string, Item>;
}

/** Reads and writes the IPVS table. */
export type TerminationTable = Pick<IpvsKernel, 'destinations' | 'change' | 'remove'>;

/** What decides on a draining destination besides its connections. */
export interface DesiredStateView {
  /** A Route wants it, or its service, again. */
  isDesired(key: string): boolean;
  endpointState(service: IpvsServiceKey, destination: IpvsDestinationKey): EndpointState;
}

/** It takes no new connections. */
function zeroWeight(key: IpvsServiceKey, destination: IpvsDestinationKey): IpvsChange {
  return { op: 'edit-destination', key, destination: { ...destination, weight: 0 } };
}

function deletion(key: IpvsServiceKey, destination: IpvsDestinationKey): IpvsChange {
  return { op: 'delete-destination', key, destination };
}

/** The destinations of one family that drain. */
export class GracefulTermination {
  readonly #table: TerminationTable;
  readonly #desired: DesiredStateView;
  readonly #services = new Map<string, DrainingService>();

  constructor(table: TerminationTable, wishes: DesiredStateView) {
    this.#table = table;
    this.#desired = wishes;
  }

  get isEmpty(): boolean {
    return this.#services.size === 0;
  }

  /**
   * Takes over what is no longer wanted along with a service, if that stays for the sake of its
   * destinations. @returns whether it does.
   */
  deferRemoval(service: string, item: Item): boolean {
    const draining = this.#services.get(service);
    draining?.rest.set(itemKey(item), item);
    return draining !== undefined;
  }

  /** VIPs of services whose destinations drain. */
  vips(): Set<string> {
    const vips = new Set<string>();
    for (const { service, rest } of this.#services.values()) {
      if (service.kind === 'address') vips.add(service.address);
      for (const item of rest.values()) {
        if (item.kind === 'entry' && item.entry.ip !== undefined) vips.add(item.entry.ip);
      }
    }
    return vips;
  }

  /** Whether this destination drains, or this service stays for such a one. */
  has(service: string, key: string): boolean {
    const draining = this.#services.get(service);
    return draining?.destinations.has(key) === true || draining?.rest.has(key) === true;
  }

  /** Takes over destinations that are no longer wanted, and deletes those that may go at once. */
  async start(
    items: readonly { service: IpvsServiceKey; destination: IpvsDestinationKey }[],
  ): Promise<void> {
    const touched = new Set<string>();
    const changes: IpvsChange[] = [];
    for (const { service, destination } of items) {
      const key = serviceText(service);
      const { destinations } = getOrCreate(this.#services, key, () => ({
        service,
        destinations: new Map(),
        rest: new Map(),
      }));
      const text = destinationText(service, destination);
      getOrCreate(destinations, text, () => ({ destination, settles: 0, rounds: 0 }));
      touched.add(key);
      const goes =
        isDeletedImmediately(service) &&
        this.#desired.endpointState(service, destination) !== 'alive';
      changes.push(goes ? deletion(service, destination) : zeroWeight(service, destination));
    }
    await this.#table.change(changes);
    await this.check(touched);
  }

  /** Whether some destination has not yet been given the time of a handshake. */
  get needsHandshakeCheck(): boolean {
    for (const { destinations } of this.#services.values()) {
      for (const { settles } of destinations.values()) if (settles < HANDSHAKE_CHECKS) return true;
    }
    return false;
  }

  /**
   * To be called again and again, in the time that a handshake takes at most, while `isUnsettled`:
   * looks at destinations that have just begun to drain.
   */
  async checkHandshakes(): Promise<void> {
    const services: string[] = [];
    for (const [key, { destinations }] of this.#services) {
      const unsettled = [...destinations.values()].filter(
        ({ settles }) => settles < HANDSHAKE_CHECKS,
      );
      for (const draining of unsettled) draining.settles += 1;
      if (unsettled.length > 0) services.push(key);
    }
    await this.check(services);
  }

  /** A round: looks at all that drain. */
  async checkAll(): Promise<void> {
    for (const { destinations } of this.#services.values()) {
      for (const draining of destinations.values()) draining.rounds += 1;
    }
    await this.check([...this.#services.keys()]);
  }

  /** Looks at the connections of these services and deletes what may go. */
  async check(services: Iterable<string>): Promise<void> {
    for (const key of services) {
      const draining = this.#services.get(key);
      if (draining !== undefined) await this.#checkService(key, draining);
    }
  }

  async #checkService(
    key: string,
    { service, destinations, rest }: DrainingService,
  ): Promise<void> {
    const states = new Map(
      (await this.#table.destinations(service)).map((state) => [
        destinationText(service, state),
        state,
      ]),
    );
    const changes: IpvsChange[] = [];
    const over: string[] = [];
    for (const [text, draining] of destinations) {
      const { destination } = draining;
      const state = states.get(text);
      const isOver =
        this.#desired.isDesired(text) ||
        state === undefined ||
        canDelete(
          service,
          this.#desired.isDesired(key),
          this.#desired.endpointState(service, destination),
          draining,
          state,
        );
      if (!isOver) {
        // To say so once may have failed, and comparisons leave alone what drains.
        if (state.weight > 0) changes.push(zeroWeight(service, destination));
        continue;
      }
      over.push(text);
      if (state === undefined || this.#desired.isDesired(text)) continue;
      changes.push(deletion(service, destination));
    }
    // What the kernel refuses is kept, and tried again with the next look.
    await this.#table.change(changes);
    for (const text of over) destinations.delete(text);
    if (destinations.size > 0) return;
    const gone = [...rest].flatMap(([text, item]) => (this.#desired.isDesired(text) ? [] : [item]));
    await this.#table.remove(gone);
    this.#services.delete(key);
  }
}
