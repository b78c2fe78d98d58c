/** The table of IPVS in the kernel. */
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

/** The kernel has no IPVS, neither built in nor as a module that it could load. */
export class IpvsMissingError extends Error {
  override readonly name = 'IpvsMissingError';

  constructor() {
    super('the kernel has no IPVS (no module ip_vs)');
  }
}

/** A change that the kernel refused. */
export interface RefusedIpvsChange {
  readonly change: IpvsChange;
  /**
   * EEXIST: what is to be added is there; ESRCH: there is no such service; ENOENT: no such
   * destination, or no such scheduler; EINVAL: no destination can have this address, or no
   * scheduler this name; EAFNOSUPPORT: this IPVS was built without IPv6.
   */
  readonly error: NetlinkError;
}

/**
 * The IPVS table of the network namespace of the thread that opens it. All calls need CAP_NET_ADMIN
 * in it. They fail with ENOENT once the module was removed, even after it came back: open another.
 */
export class Ipvs {
  readonly #socket: NetlinkSocket;
  readonly #type: number;

  private constructor(socket: NetlinkSocket, type: number) {
    this.#socket = socket;
    this.#type = type;
  }

  /** Loads the module if need be. @throws IpvsMissingError, NetlinkError */
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
   * The services of a family, in no order, whoever made them. While others change the table, some
   * may be missing or come twice: the kernel counts its way through and does not tell.
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
   * The destinations of a service, the latest first; none when there is no such service.
   * @throws NetlinkError, MalformedMessage
   */
  destinations(key: IpvsServiceKey): Promise<IpvsDestinationState[]> {
    const format = addressFormatter();
    return this.#dump(destinationsPayload(key), (payload) =>
      readDestination(payload, key.family, format),
    );
  }

  /**
   * Makes changes in their order, and goes on after one that the kernel refuses. The event loop
   * gets turns meanwhile; changes of two calls at the same time may mix.
   * @returns those that were refused, in order.
   * @throws NetlinkError when some may have been made and others not; list what there is.
   * @throws RangeError for a change that cannot be told to the kernel (`changePayload`); those far
   * ahead of it were made.
   */
  async apply(changes: readonly IpvsChange[]): Promise<RefusedIpvsChange[]> {
    const refused = await sendAll(this.#socket, changes, (change) => {
      return { type: this.#type, payload: changePayload(change) };
    });
    return refused.map(({ item, error }) => ({ change: item, error }));
  }

  /** @param timeouts Seconds; 0 leaves one as it is. @throws NetlinkError */
  setTimeouts(timeouts: IpvsTimeouts): Promise<void> {
    return this.#socket.request({ type: this.#type, payload: setTimeoutsPayload(timeouts) });
  }

  /** Fails what is under way with ECANCELED. */
  close(): Promise<void> {
    return this.#socket.close();
  }

  #dump<T>(payload: Buffer, read: (payload: Buffer) => T | undefined): Promise<T[]> {
    return this.#socket.dump({ type: this.#type, payload }, (message) =>
      message.type === this.#type ? read(message.payload) : undefined,
    );
  }
}
