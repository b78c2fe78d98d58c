/** Reads and changes tables of nf_tables, one transaction at a time. */
import type { IpFamily } from '../../api/objects.ts';
import { SerialQueue } from '../../sync/serial-queue.ts';
import { addressFamily } from '../core/address.ts';
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import {
  EINTR,
  ENOENT,
  hasErrno,
  labelErrors,
  NetlinkError,
  NO_SUBSYSTEM_ERRNOS,
  undefinedOnErrno,
} from '../core/error.ts';
import type { NetlinkMessage, NetlinkRequest } from '../core/message.ts';
import { NetlinkSocket, withSocket } from '../core/socket.ts';
import { countersRequest, deleteCounterRequest, type NftCounter, readCounter } from './counter.ts';
import { visitElements } from './element.ts';
import {
  chainsRequest,
  deleteChainRequest,
  deleteSetRequest,
  deleteTableRequest,
  elementsRequest,
  flushChainRequest,
  genidOf,
  isElementsMessage,
  readChain,
  readSet,
  readTable,
  setRequest,
  setsRequest,
  tableRequest,
  tablesRequest,
} from './message.ts';
import { TransactionWriter } from './transaction.ts';
import { NftRefusedError, TransactionBuilder } from './transaction-builder.ts';
import {
  NFT_SET_FLAGS,
  type NftElement,
  type NftOperation,
  type NftSet,
  type NftTable,
} from './types.ts';

export type { NftCounter } from './counter.ts';
export { NftRefusedError } from './transaction-builder.ts';
export {
  NFT_SET_FLAGS,
  type NftChainRules,
  type NftElement,
  type NftElementChange,
  type NftNotification,
  type NftOperation,
  type NftRule,
  type NftSet,
  type NftTable,
  type NftVerdict,
} from './types.ts';

/**
 * Bytes of the biggest transaction, some 40 to 100 for an element. A limit, not memory that is
 * held; the kernel doubles it.
 */
const SEND_BUFFER = 256 << 20;
const DUMP_ATTEMPTS = 5;

const portIds = new Set<number>();
/** Of the sockets of all clients of this thread that are open: notifications of what they change bear these. */
export const openPortIds: ReadonlySet<number> = portIds;

/**
 * What all clients of this thread do: a change by one, such as that of the other family, would interrupt
 * what another dumps. The kernel takes the transactions of a namespace one after the other in any case.
 */
const queue = new SerialQueue();

/**
 * The elements of the sets and maps of one table, in the network namespace of the thread that
 * opens it. All calls need CAP_NET_ADMIN there. What is asked for is done in the order of calls.
 */
export class NfTables {
  readonly #socket: NetlinkSocket;
  readonly #table: NftTable;

  /**
   * The table need not be there yet.
   * @throws RangeError for a name that no table can have; NetlinkError.
   */
  constructor(family: IpFamily, table: string) {
    this.#table = { family: addressFamily(family), name: table };
    tableRequest(this.#table);
    this.#socket = new NetlinkSocket(NETLINK_NETFILTER, { sendBuffer: SEND_BUFFER });
    portIds.add(this.#socket.portId);
  }

  /** Notifications of what is done here bear it. */
  get portId(): number {
    return this.#socket.portId;
  }

  /**
   * One atomic transaction: packets see all of it or nothing. Steps are made in their order, so
   * that an element can be deleted and added with other data; but chains that are to be filled are made
   * before anything else is done, so that rules and elements may name them. To add an element that is
   * there with the same data is no error; to delete one that is not there is. The event loop gets turns
   * while it is encoded; the arrays must not be changed before the promise is settled.
   *
   * The kernel does not take much care of concatenated intervals (seen on 6.18): it deletes the one
   * in which the key lies, whatever its ends, and it adds one that encloses another.
   * @throws NftRefusedError when nothing was done.
   * @throws RangeError, before anything is sent, for a name or a value that cannot be.
   * @throws NetlinkError when it is not known whether it was done.
   */
  async transact(steps: readonly NftOperation[]): Promise<void> {
    if (steps.every(isNothing)) return;
    const { name } = this.#table;
    const script = new TransactionBuilder(this.#table);
    const pack = async () => {
      await script.write(steps);
      return script.writer.finish();
    };
    const [refusal] = await queue.run(() =>
      labelErrors(`nf_tables transaction in ${name}`, this.#socket.transaction(pack)),
    );
    if (refusal !== undefined) throw script.refused(refusal);
  }

  /**
   * Visits each element of a set or a map that is in force, in no order; those that packets added
   * too. Elements that have expired are left out, and so is a catch-all element. `data` is missing
   * where it is a verdict that NftVerdict does not have. Only for hash sets and sets of concatenated
   * intervals: other intervals are not one element to the kernel.
   *
   * The kernel hands out a set in parts, and continues by counting. When others change nf_tables
   * between two parts, in whatever table of the namespace, the dump is made again once; if they go
   * on, what it brings counts, for it is most likely not this set that they change, and on a busy
   * node they never pause for as long as the dump of a big set takes. When the kernel rearranges a
   * growing hash table (then elements come twice, and as many are left out), it is made again up to
   * five times. To a set that packets add to neither counts: some elements may be missing or come twice.
   * @param restart Called before a dump is made again: what `visit` has heard does not count.
   * @throws NetlinkError: ENOENT for no such table or set; EINTR when it was rearranged all the time.
   * @throws whatever `visit` throws.
   */
  async visitElements(
    set: string,
    visit: (element: NftElement) => void,
    restart: () => void = () => undefined,
  ): Promise<void> {
    const operation = `elements of ${this.#table.name} ${set}`;
    for (let attempt = 0; attempt < DUMP_ATTEMPTS; attempt++) {
      if (attempt > 0) restart();
      const visited = () => labelErrors(operation, this.#visit(set, visit, attempt > 0));
      if (await queue.run(visited)) return;
    }
    throw new NetlinkError(operation, EINTR);
  }

  /** The names of the table's chains; undefined when there is no such table. @throws NetlinkError */
  chains(): Promise<string[] | undefined> {
    const { family, name } = this.#table;
    return this.#list('chains', chainsRequest(family), (message) => readChain(message, name));
  }

  /**
   * The table's sets and maps, anonymous ones included; undefined when there is no such table.
   * @throws NetlinkError
   */
  sets(): Promise<NftSet[] | undefined> {
    return this.#list('sets', setsRequest(this.#table), readSet);
  }

  /** The table's named counters; undefined when there is no such table. @throws NetlinkError */
  counters(): Promise<NftCounter[] | undefined> {
    const { name } = this.#table;
    const pick = (message: NetlinkMessage) => readCounter(message, name);
    return this.#list('counters', countersRequest(this.#table), pick);
  }

  /**
   * Deletes chains with their rules, sets and counters. Nothing else may name them. In two transactions:
   * before 6.2 the kernel does not let go of a chain in the one that takes away a map to it.
   * @throws NftRefusedError; NetlinkError when it is not known whether it was done.
   */
  async remove(
    chains: readonly string[],
    sets: readonly string[],
    counters: readonly string[],
  ): Promise<void> {
    const table = this.#table;
    await this.#send([
      ...chains.map((name) => flushChainRequest(table, name)),
      ...sets.map((name) => deleteSetRequest(table, name)),
    ]);
    await this.#send([
      ...chains.map((name) => deleteChainRequest(table, name)),
      ...counters.map((name) => deleteCounterRequest(table, name)),
    ]);
  }

  /**
   * Deletes the table with all that is in it; one that is not there is no error.
   * @throws NftRefusedError; NetlinkError when it is not known whether it was done.
   */
  async delete(): Promise<void> {
    try {
      await this.#send([deleteTableRequest(this.#table)]);
    } catch (error) {
      if (!(error instanceof NftRefusedError) || error.errno !== ENOENT) throw error;
    }
  }

  async #send(requests: readonly NetlinkRequest[]): Promise<void> {
    if (requests.length === 0) return;
    const { family, name } = this.#table;
    const writer = new TransactionWriter(family, name);
    for (const request of requests) writer.append(request);
    const send = () => this.#socket.transaction(async () => writer.finish());
    const [refusal] = await queue.run(() =>
      labelErrors(`nf_tables transaction in ${name}`, send()),
    );
    if (refusal !== undefined) throw new NftRefusedError(refusal.error);
  }

  /** Fails what is under way with ECANCELED. */
  async close(): Promise<void> {
    await this.#socket.close();
    portIds.delete(this.#socket.portId);
  }

  /**
   * @param amidChanges go on when others change nf_tables meanwhile.
   * @returns whether all elements were visited, as far as the kernel lets know.
   */
  async #visit(
    set: string,
    visit: (element: NftElement) => void,
    amidChanges: boolean,
  ): Promise<boolean> {
    const { flags } = await this.#socket.get(setRequest(this.#table, set), readSet);
    const dump = (pick: (message: NetlinkMessage) => void) =>
      this.#socket.dump(elementsRequest(this.#table, set), (message) => {
        if (isElementsMessage(message)) pick(message);
      });
    if ((flags & NFT_SET_FLAGS.dynamic) !== 0) {
      await dump((message) => visitElements(message, visit));
      return true;
    }
    const keys = new Set<string>();
    let generation: number | undefined;
    let settled = true;
    await dump((message) => {
      generation ??= genidOf(message);
      if (!amidChanges && genidOf(message) !== generation) settled = false;
      // What is left is received all the same.
      if (!settled) return;
      visitElements(message, (element) => {
        const key = element.key.toString('latin1');
        if (keys.has(key)) settled = false;
        keys.add(key);
        visit(element);
      });
    });
    return settled;
  }

  async #list<T>(
    what: string,
    request: NetlinkRequest,
    pick: (message: NetlinkMessage) => T | undefined,
  ): Promise<T[] | undefined> {
    const { name } = this.#table;
    const table = this.#socket.get(tableRequest(this.#table), readTable);
    const found = await undefinedOnErrno(labelErrors(`table ${name}`, table), ENOENT);
    if (found === undefined) return undefined;
    const dump = () => labelErrors(`${what} of ${name}`, this.#socket.dump(request, pick));
    return await undefinedOnErrno(queue.run(dump), ENOENT);
  }
}

/**
 * The tables of all families; none where the kernel has no nf_tables.
 * @throws NetlinkError
 */
export async function listTables(): Promise<NftTable[]> {
  try {
    return await withSocket(NETLINK_NETFILTER, (socket) => socket.dump(tablesRequest(), readTable));
  } catch (error) {
    if (hasErrno(error, ...NO_SUBSYSTEM_ERRNOS)) return [];
    throw error;
  }
}

/**
 * Deletes a table with all that is in it; one that is not there is no error.
 * @throws NftRefusedError, such as EPERM for a table that a process owns; NetlinkError.
 */
export async function deleteTable(table: NftTable): Promise<void> {
  const writer = new TransactionWriter(table.family, table.name);
  writer.append(deleteTableRequest(table));
  const [refusal] = await withSocket(NETLINK_NETFILTER, (socket) =>
    socket.transaction(async () => writer.finish()),
  );
  if (refusal !== undefined && refusal.error.errno !== ENOENT) {
    throw new NftRefusedError(refusal.error);
  }
}

function isNothing(step: NftOperation): boolean {
  if ('elements' in step) return step.elements.length === 0;
  return step.action === 'remove' && step.chains.length === 0;
}
