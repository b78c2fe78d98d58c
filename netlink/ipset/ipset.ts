/** Lists, creates and changes ipsets over netlink. */
import type { IpFamily } from '../../api/objects.ts';
import { TimeSlice } from '../../sync/time-slice.ts';
import { addressFormatter } from '../core/address.ts';
import { sendAll } from '../core/batches.ts';
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import {
  IPSET_ERR_FIND_TYPE,
  labelErrors,
  type NetlinkError,
  NO_SUBSYSTEM_ERRNOS,
  relabelError,
  toUnsupportedError,
  UnsupportedError,
} from '../core/error.ts';
import type { NetlinkMessage, NetlinkRequest } from '../core/message.ts';
import { NFGENMSG_LENGTH } from '../core/nfnetlink.ts';
import { NetlinkSocket } from '../core/socket.ts';
import { type IpsetEntry, readEntries } from './entry.ts';
import {
  createRequest,
  destroyRequest,
  entriesRequest,
  entryRequest,
  headersRequest,
  type IpsetHeader,
  type IpsetSpec,
  type IpsetType,
  protocolRequest,
  readHeader,
  readProtocol,
  readRevision,
  swapRequest,
  typeRequest,
} from './message.ts';

export type { IpsetEntry } from './entry.ts';
export type { IpsetHeader, IpsetSpec, IpsetType } from './message.ts';

export interface IpsetChange {
  readonly op: 'add' | 'delete';
  readonly set: string;
  readonly entry: IpsetEntry;
}

/** A change that the kernel refused. Part of a port range may have been applied. */
export interface RefusedIpsetChange {
  readonly change: IpsetChange;
  readonly error: NetlinkError;
}

/** IPSET_MAX_RANGE: kernels from 5.16 to early 6.1 refuse larger ranges with ERANGE. */
const MAX_RANGE = 1 << 14;
/**
 * Maximum number of elements that one send adds or deletes. The kernel takes about 15 ms for it,
 * while other users of ipset wait.
 */
const MAX_ELEMENTS_PER_SEND = 4 * MAX_RANGE;

/** The ipsets of the network namespace in which the socket was opened. */
export class Ipsets {
  readonly #socket: NetlinkSocket;
  readonly #revisions = new Map<string, number>();

  private constructor(socket: NetlinkSocket) {
    this.#socket = socket;
  }

  /**
   * Opens the socket. The kernel loads its ipset modules on demand.
   * @throws UnsupportedError if the kernel has no ipset; NetlinkError, such as EPERM.
   */
  static async open(): Promise<Ipsets> {
    let socket: NetlinkSocket | undefined;
    try {
      socket = new NetlinkSocket(NETLINK_NETFILTER);
      const isSupported = await socket.get(protocolRequest(), readPayload(readProtocol));
      if (!isSupported) throw new UnsupportedError('ipset protocol version 6');
      return new Ipsets(socket);
    } catch (error) {
      await socket?.close();
      throw toUnsupportedError('ipset', error, ...NO_SUBSYSTEM_ERRNOS);
    }
  }

  /**
   * Lists all sets, including sets of unsupported types.
   * @throws NetlinkError
   */
  list(): Promise<IpsetHeader[]> {
    return labelErrors('ipset list', this.#socket.dump(headersRequest(), readPayload(readHeader)));
  }

  /**
   * Lists the entries of a set of a supported type, in no particular order. Entries added or
   * deleted meanwhile may be missing. Omits attributes without a field in IpsetEntry (timeouts,
   * `nomatch`).
   * @throws NetlinkError: ENOENT if the set does not exist.
   */
  async entries(name: string): Promise<IpsetEntry[]> {
    const entries: IpsetEntry[] = [];
    await this.visitEntries(name, (entry) => entries.push(entry));
    return entries;
  }

  /**
   * Visits the entries of a set one by one, for sets too large for memory. An entry may be visited
   * more than once. Otherwise as `entries`.
   * @throws NetlinkError: ENOENT if the set does not exist.
   */
  async visitEntries(name: string, visit: (entry: IpsetEntry) => void): Promise<void> {
    const format = addressFormatter();
    const dump = this.#socket.dump(entriesRequest(name), ({ payload }) => {
      for (const entry of readEntries(payload, NFGENMSG_LENGTH, format)) visit(entry);
      return undefined;
    });
    await labelErrors(`ipset list ${name}`, dump);
  }

  /**
   * Creates a set.
   * @throws UnsupportedError if the kernel lacks the type.
   * @throws NetlinkError: EEXIST if a set of that name exists.
   */
  async create(spec: IpsetSpec): Promise<void> {
    const { name, type, family } = spec;
    const revision = await this.#revision(type, family);
    await this.#request(`ipset create ${name}`, createRequest(spec, revision));
  }

  /**
   * Destroys a set.
   * @throws NetlinkError: ENOENT; IPSET_ERR_BUSY if rules or list sets refer to it.
   */
  async destroy(name: string): Promise<void> {
    await this.#request(`ipset destroy ${name}`, destroyRequest(name));
  }

  /**
   * Swaps the content of two sets atomically; rules that refer to them see the change at once.
   * @throws NetlinkError: ENOENT; IPSET_ERR_EXIST_SETNAME2 if the second set does not exist;
   * IPSET_ERR_TYPE_MISMATCH.
   */
  async swap(a: string, b: string): Promise<void> {
    await this.#request(`ipset swap ${a} ${b}`, swapRequest(a, b));
  }

  /**
   * Adds and deletes entries in order, and continues after a change that the kernel refuses. Adding
   * an existing entry replaces its comment and `skbMark`. Deleting a missing entry is not an
   * error.
   * @returns the refused changes, in order: ENOENT if the set does not exist, IPSET_ERR_HASH_FULL,
   * ...
   * @throws RangeError for an invalid entry (see entryAttributes), before anything is changed.
   * @throws NetlinkError if the outcome of a send is unknown. Later changes are not sent.
   */
  async change(changes: readonly IpsetChange[]): Promise<RefusedIpsetChange[]> {
    const messages = await encode(changes);
    const refused = new Map<number, RefusedIpsetChange>();
    const weigh = { of: ({ weight }: EncodedChange) => weight, max: MAX_ELEMENTS_PER_SEND };
    const sent = sendAll(this.#socket, messages, ({ request }) => request, weigh);
    for (const { item, error } of await sent) {
      const { position, change } = item;
      if (refused.has(position)) continue;
      const operation = `ipset ${change.op} ${change.set}`;
      refused.set(position, { change, error: relabelError(operation, error) });
    }
    return [...refused.values()];
  }

  /** Fails pending operations with ECANCELED. */
  close(): Promise<void> {
    return this.#socket.close();
  }

  #request(operation: string, request: NetlinkRequest): Promise<void> {
    return labelErrors(operation, this.#socket.request(request));
  }

  async #revision(type: IpsetType, family: IpFamily): Promise<number> {
    const key = `${type} ${family}`;
    const known = this.#revisions.get(key);
    if (known !== undefined) return known;
    const read = readPayload((payload) => readRevision(payload, type));
    try {
      const revision = await this.#socket.get(typeRequest(type, family), read);
      this.#revisions.set(key, revision);
      return revision;
    } catch (error) {
      throw toUnsupportedError(`ipset type ${type}`, error, IPSET_ERR_FIND_TYPE);
    }
  }
}

interface EncodedChange {
  readonly change: IpsetChange;
  /** Index of the change in the call. */
  readonly position: number;
  readonly request: NetlinkRequest;
  /** Number of elements that the kernel adds or deletes: the ports of a range. */
  readonly weight: number;
}

/** Encodes all changes before the first is sent, so that an invalid change prevents all changes. */
async function encode(changes: readonly IpsetChange[]): Promise<EncodedChange[]> {
  const messages: EncodedChange[] = [];
  const slice = new TimeSlice();
  for (const [position, change] of changes.entries()) {
    for (const part of splitRange(change.entry)) {
      const { port = 0, portTo = port } = part;
      const request = entryRequest(change.op, change.set, part);
      messages.push({ change, position, request, weight: portTo - port + 1 });
    }
    if (slice.isOver()) await slice.yield();
  }
  return messages;
}

function splitRange(entry: IpsetEntry): IpsetEntry[] {
  const { port, portTo } = entry;
  if (port === undefined || portTo === undefined || portTo - port < MAX_RANGE) return [entry];
  const parts: IpsetEntry[] = [];
  for (let first = port; first <= portTo; first += MAX_RANGE) {
    parts.push({ ...entry, port: first, portTo: Math.min(first + MAX_RANGE - 1, portTo) });
  }
  return parts;
}

function readPayload<T>(read: (payload: Buffer) => T): (message: NetlinkMessage) => T {
  return ({ payload }) => read(payload);
}
