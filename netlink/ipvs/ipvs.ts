/** Reads and changes the IPVS table of the kernel. */
import type { IpFamily } from '../../api/objects.ts';
import { addressFormatter } from '../core/address.ts';
import { sendAll } from '../core/batches.ts';
import { NETLINK_GENERIC } from '../core/descriptor.ts';
import type { NetlinkError } from '../core/error.ts';
import { NetlinkSocket } from '../core/socket.ts';
import { resolveFamilyId } from './genetlink.ts';
import {
  changePayload,
  destinationsPayload,
  readDestination,
  readService,
  servicesPayload,
  setTimeoutsPayload,
} from './message.ts';
import type {
  IpvsChange,
  IpvsDestinationState,
  IpvsService,
  IpvsServiceKey,
  IpvsTimeouts,
} from './objects.ts';

export type * from './objects.ts';

/** The kernel has no IPVS: neither built in nor as a loadable module. */
export class IpvsMissingError extends Error {
  override readonly name = 'IpvsMissingError';

  constructor() {
    super('the kernel has no IPVS: module ip_vs is not available');
  }
}

/** A change that the kernel refused. */
export interface RefusedIpvsChange {
  readonly change: IpvsChange;
  /**
   * EEXIST: the service or destination already exists. ESRCH: the service does not exist. ENOENT:
   * the destination or scheduler does not exist. EINVAL: invalid destination address or scheduler
   * name. EAFNOSUPPORT: IPVS was built without IPv6.
   */
  readonly error: NetlinkError;
}

/**
 * The IPVS table of the network namespace of the thread that opens it. All calls need CAP_NET_ADMIN
 * there. After the module is removed they fail with ENOENT, even if it is loaded again; open a new
 * instance.
 */
export class Ipvs {
  readonly #socket: NetlinkSocket;
  readonly #type: number;

  private constructor(socket: NetlinkSocket, type: number) {
    this.#socket = socket;
    this.#type = type;
  }

  /** Opens the table and loads the module if needed. @throws IpvsMissingError, NetlinkError */
  static async open(): Promise<Ipvs> {
    const socket = new NetlinkSocket(NETLINK_GENERIC);
    try {
      const type = await resolveFamilyId(socket, 'IPVS');
      if (type === undefined) throw new IpvsMissingError();
      return new Ipvs(socket, type);
    } catch (error) {
      await socket.close();
      throw error;
    }
  }

  /**
   * Lists the services of a family, in no particular order, including services of other programs.
   * Services may be missing or duplicated if the table changes meanwhile: the kernel continues a
   * dump at an index, and does not report the change.
   * @throws NetlinkError, MalformedMessage
   */
  services(family: IpFamily): Promise<IpvsService[]> {
    const format = addressFormatter();
    return this.#dump(servicesPayload(), (payload) => {
      const service = readService(payload, format);
      return service?.key.family === family ? service : undefined;
    });
  }

  /**
   * Lists the destinations of a service, newest first; none if the service does not exist.
   * @throws NetlinkError, MalformedMessage
   */
  destinations(key: IpvsServiceKey): Promise<IpvsDestinationState[]> {
    const format = addressFormatter();
    return this.#dump(destinationsPayload(key), (payload) =>
      readDestination(payload, key.family, format),
    );
  }

  /**
   * Applies changes in order, and continues after a change that the kernel refuses. Yields to the
   * event loop; changes of concurrent calls may interleave.
   * @returns the refused changes, in order.
   * @throws NetlinkError if some changes may have been applied and others not. List the table to
   * find out.
   * @throws RangeError for a change that cannot be encoded (see `changePayload`). Changes of
   * earlier batches were applied.
   */
  async apply(changes: readonly IpvsChange[]): Promise<RefusedIpvsChange[]> {
    const refused = await sendAll(this.#socket, changes, (change) => {
      return { type: this.#type, payload: changePayload(change) };
    });
    return refused.map(({ item, error }) => ({ change: item, error }));
  }

  /**
   * Sets the timeouts of idle connections.
   * @param timeouts Seconds; 0 keeps the current value.
   * @throws NetlinkError
   */
  setTimeouts(timeouts: IpvsTimeouts): Promise<void> {
    return this.#socket.request({ type: this.#type, payload: setTimeoutsPayload(timeouts) });
  }

  /** Fails pending operations with ECANCELED. */
  close(): Promise<void> {
    return this.#socket.close();
  }

  #dump<T>(payload: Buffer, read: (payload: Buffer) => T | undefined): Promise<T[]> {
    return this.#socket.dump({ type: this.#type, payload }, (message) =>
      message.type === this.#type ? read(message.payload) : undefined,
    );
  }
}
