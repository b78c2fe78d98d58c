/** The sets of ipset in the kernel. */
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
  orUnsupported,
  relabelError,
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

/** A change that the kernel refused; of a range of ports, a part may have been done. */
export interface RefusedIpsetChange {
  readonly change: IpsetChange;
  readonly error: NetlinkError;
}

/** IPSET_MAX_RANGE: kernels from 5.16 to early 6.1 refuse bigger ranges with ERANGE. */
const MAX_RANGE = 1 << 14;
/** Elements of one send: some 15 ms of the kernel, for which other users of ipset wait. */
const SEND_ELEMENTS = 4 * MAX_RANGE;

/** The sets of the network namespace in which it was opened. */
export class Ipsets {
  readonly #socket: NetlinkSocket;
  readonly #revisions = new Map<string, number>();

  private constructor(socket: NetlinkSocket) {
    this.#socket = socket;
  }

  /**
   * The kernel loads its modules by itself if it can.
   * @throws UnsupportedError when the kernel has no ipset; NetlinkError, such as EPERM.
   */
  static async open(): Promise<Ipsets> {
    let socket: NetlinkSocket | undefined;
    try {
      socket = new NetlinkSocket(NETLINK_NETFILTER);
      const spoken = await socket.get(protocolRequest(), readPayload(readProtocol));
      if (!spoken) throw new UnsupportedError('ipset of protocol version 6');
      return new Ipsets(socket);
    } catch (error) {
      await socket?.close();
      throw orUnsupported('ipset', error, ...NO_SUBSYSTEM_ERRNOS);
    }
  }

  /**
   * All sets, of types that are not known here too.
   * @throws NetlinkError
   */
  list(): Promise<IpsetHeader[]> {
    return labelErrors('ipset list', this.#socket.dump(headersRequest(), readPayload(readHeader)));
  }

  /**
   * The entries of a set of one of the types of SetType, in no order. Those that come or go
   * meanwhile may be missing. What a SetEntry has no field for (timeouts, `nomatch`) is left out.
   * @throws NetlinkError: ENOENT when there is no such set.
   */
  async entries(name: string): Promise<IpsetEntry[]> {
    const entries: IpsetEntry[] = [];
    await this.visitEntries(name, (entry) => entries.push(entry));
    return entries;
  }

  /** The same one by one, for sets that are too big to be held; each may be visited more than once. */
  async visitEntries(name: string, visit: (entry: IpsetEntry) => void): Promise<void> {
    const format = addressFormatter();
    const dump = this.#socket.dump(entriesRequest(name), ({ payload }) => {
      for (const entry of readEntries(payload, NFGENMSG_LENGTH, format)) visit(entry);
      return undefined;
    });
    await labelErrors(`ipset list ${name}`, dump);
  }

  /**
   * @throws UnsupportedError when the kernel lacks the type.
   * @throws NetlinkError: EEXIST when there is a set of that name.
   */
  async create(spec: IpsetSpec): Promise<void> {
    const { name, type, family } = spec;
    const revision = await this.#revision(type, family);
    await this.#request(`ipset create ${name}`, createRequest(spec, revision));
  }

  /** @throws NetlinkError: ENOENT; IPSET_ERR_BUSY when rules or lists refer to it. */
  async destroy(name: string): Promise<void> {
    await this.#request(`ipset destroy ${name}`, destroyRequest(name));
  }

  /**
   * Exchanges two sets at once, for rules that refer to them too.
   * @throws NetlinkError: ENOENT; IPSET_ERR_EXIST_SETNAME2 when there is no second one;
   * IPSET_ERR_TYPE_MISMATCH.
   */
  async swap(a: string, b: string): Promise<void> {
    await this.#request(`ipset swap ${a} ${b}`, swapRequest(a, b));
  }

  /**
   * Adds and deletes entries in order, and goes on after one that the kernel refuses. To add an
   * entry that is there gives it the new extensions (its skbMark, or none); to delete one that is
   * not there is no error.
   * @returns the refused ones, in order: ENOENT for no such set, IPSET_ERR_HASH_FULL, ...
   * @throws RangeError for an entry that cannot be (see entryAttributes), before any is changed.
   * @throws NetlinkError when the fate of a send is not known; what follows it is not done.
   */
  async change(changes: readonly IpsetChange[]): Promise<RefusedIpsetChange[]> {
    const messages = await encode(changes);
    const refused = new Map<number, RefusedIpsetChange>();
    const weigh = { of: ({ weight }: EncodedChange) => weight, most: SEND_ELEMENTS };
    const sent = sendAll(this.#socket, messages, ({ request }) => request, weigh);
    for (const { item, error } of await sent) {
      const { position, change } = item;
      if (refused.has(position)) continue;
      const operation = `ipset ${change.op} ${change.set}`;
      refused.set(position, { change, error: relabelError(operation, error) });
    }
    return [...refused.values()];
  }

  /** Fails what is under way with ECANCELED. */
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
      throw orUnsupported(`ipset type ${type}`, error, IPSET_ERR_FIND_TYPE);
    }
  }
}

interface EncodedChange {
  readonly change: IpsetChange;
  /** Of the change among all. */
  readonly position: number;
  readonly request: NetlinkRequest;
  /** Elements. */
  readonly weight: number;
}

/** Of everything before anything is sent, so that what cannot be encoded changes nothing. */
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
