/** Reads and changes nf_tables tables, one transaction at a time. */
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
import type { NetlinkMessage, NetlinkRequest, PackedMessages } from '../core/message.ts';
import { NetlinkSocket, type RefusedMessage, withSocket } from '../core/socket.ts';
import { deleteChainRequest, readChain, readExistingChain } from './chain.ts';
import { countersRequest, deleteCounterRequest, type NftCounter, readCounter } from './counter.ts';
import { elementKeyAttribute, visitElements } from './element.ts';
import { deleteFlowtableRequest, flowtablesRequest, readFlowtable } from './flowtable.ts';
import { countOwnTransaction, transactionQueue } from './generation.ts';
import { IntervalJoiner, intervalsOf, type NftRawElement } from './interval.ts';
import {
  chainsRequest,
  deleteSetRequest,
  deleteTableRequest,
  elementRequest,
  elementsRequest,
  flushChainRequest,
  genidOf,
  isElementsMessage,
  readRule,
  readSet,
  readTable,
  readTableFlags,
  readTableUse,
  rulesRequest,
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
  type NftExistingChain,
  type NftExistingRule,
  type NftFlowtable,
  type NftOperation,
  type NftSet,
  type NftTable,
} from './types.ts';
import { uniteChains, wholeDump } from './whole-dump.ts';

export type { NftCounter } from './counter.ts';
export { NftRefusedError } from './transaction-builder.ts';
export {
  NFT_SET_FLAGS,
  NFT_TABLE_DORMANT,
  type NftChainRules,
  type NftElement,
  type NftElementChange,
  type NftExistingChain,
  type NftExistingRule,
  type NftNotification,
  type NftOperation,
  type NftRule,
  type NftSet,
  type NftTable,
  type NftVerdict,
} from './types.ts';

/**
 * Maximum bytes of a transaction; an element takes about 40 to 100. This is a limit, not allocated
 * memory. The kernel doubles it.
 */
const SEND_BUFFER = 256 << 20;
const DUMP_ATTEMPTS = 5;

const portIds = new Set<number>();
/**
 * Port IDs of the open sockets of all NfTables of this thread. Notifications of changes by an
 * NfTables carry its port ID.
 */
export const openPortIds: ReadonlySet<number> = portIds;

/** The operations that read a table. */
export type NftReader = Pick<
  NfTables,
  | 'visitElements'
  | 'findElement'
  | 'tableFlags'
  | 'chains'
  | 'chainsWithHooks'
  | 'rules'
  | 'sets'
  | 'counters'
  | 'flowtables'
>;

/**
 * A table in the network namespace of the thread that opens it. All calls need CAP_NET_ADMIN there,
 * and run in the order of calls.
 */
export class NfTables {
  readonly #family: IpFamily;
  readonly #socket: NetlinkSocket;
  readonly #table: NftTable;
  readonly #queue: SerialQueue;
  readonly #inBackground: boolean;

  /**
   * Opens a socket. The table need not exist yet.
   * @param inBackground Only to read: dumps wait for no transaction of this thread, and let syncs
   * go first.
   * @throws RangeError for an invalid table name; NetlinkError.
   */
  constructor(family: IpFamily, table: string, inBackground = false) {
    this.#family = family;
    this.#table = { family: addressFamily(family), name: table };
    tableRequest(this.#table);
    this.#inBackground = inBackground;
    this.#queue = inBackground ? new SerialQueue() : transactionQueue;
    this.#socket = new NetlinkSocket(NETLINK_NETFILTER, { sendBuffer: SEND_BUFFER, inBackground });
    portIds.add(this.#socket.portId);
  }

  /**
   * Reads the table through another socket, without waiting for transactions: the dump of a large
   * table takes longer than a sync may wait. Sees parts of transactions. If transactions interrupt
   * every dump (EINTR), `read` is called again with this object. Its dumps share a queue with the
   * transactions of this thread, so syncs then wait for each dump.
   * @throws NetlinkError; whatever `read` throws.
   */
  async readBesides<T>(read: (reader: NftReader) => Promise<T>): Promise<T> {
    const reader = new NfTables(this.#family, this.#table.name, true);
    try {
      return await read(reader);
    } catch (error) {
      if (!hasErrno(error, EINTR)) throw error;
    } finally {
      await reader.close();
    }
    return await read(this);
  }

  /** Port ID of the socket. Notifications of changes by this object carry this port ID. */
  get portId(): number {
    return this.#socket.portId;
  }

  /**
   * Applies operations in one atomic transaction: packets see all of them or none. They apply in
   * order, so an element can be deleted and added with other data. Exception: chains that get rules
   * are created first, so that rules and elements may refer to them. Adding an existing element
   * with the same data is not an error, but deleting a missing element is an error. Encoding yields
   * to the event loop, so do not change the arrays until the promise settles.
   *
   * Transactions of other programs cannot make it fail: it names no generation (NFNL_BATCH_GENID), so there is no ERESTART.
   * After EAGAIN the kernel repeats the batch itself (nfnetlink_rcv_batch).
   *
   * The kernel checks concatenated intervals loosely (seen on 6.18). It deletes the interval that
   * contains the key, whatever its ends, and it adds an interval that encloses another.
   * @throws NftRefusedError if the kernel refused the transaction; nothing was applied.
   * @throws RangeError, before anything is sent, for an invalid name or value.
   * @throws NetlinkError if the outcome is unknown.
   */
  async transact(operations: readonly NftOperation[]): Promise<void> {
    if (operations.every(isEmpty)) return;
    const builder = new TransactionBuilder(this.#table);
    const refusal = await this.#commit(async () => {
      await builder.write(operations);
      return builder.writer.finish();
    });
    if (refusal !== undefined) throw builder.refusedError(refusal);
  }

  /**
   * Asks the kernel whether it would accept a transaction. Nothing is applied, as with `nft --check`. The kernel checks
   * hooks of rules and loops of jumps only when it applies a transaction (seen on 6.18).
   * @throws as `transact`.
   */
  async check(operations: readonly NftOperation[]): Promise<void> {
    const builder = new TransactionBuilder(this.#table);
    await builder.write(operations);
    const pack = async () => builder.writer.finish(false);
    const [refusal] = await this.#queue.run(() =>
      labelErrors(
        `check of nf_tables table ${this.#table.name}`,
        this.#socket.transaction(pack, false),
      ),
    );
    if (refusal !== undefined) throw builder.refusedError(refusal);
  }

  /**
   * Visits the elements of a set or map, in no particular order, including elements that packets
   * added. Omits expired elements and the catch-all element. `data` is missing for a verdict that
   * NftVerdict does not have.
   *
   * The kernel dumps a set in parts and continues at an index. If any table of the network
   * namespace changes between two parts, the dump is repeated once. A change during the second dump
   * is ignored: most likely it concerns another set, and on a busy node a large dump never
   * completes without a change. If the kernel resizes a hash table during a dump, some elements
   * appear twice and others are missing, so the dump is repeated, up to five dumps. Neither check
   * applies to a set that packets add elements to: some elements may be missing or duplicated.
   * @param restart Called before a dump is repeated: discard the elements visited so far.
   * @throws NetlinkError: ENOENT if the table or set does not exist; EINTR if every dump was
   * inconsistent.
   * @throws whatever `visit` throws.
   */
  async visitElements(
    set: string,
    visit: (element: NftElement) => void,
    restart: () => void = () => undefined,
  ): Promise<void> {
    const operation = `dump of nf_tables set ${this.#table.name} ${set}`;
    let sorts = false;
    for (let attempt = 0; attempt < DUMP_ATTEMPTS; attempt++) {
      if (attempt > 0) restart();
      const visited = () => labelErrors(operation, this.#visit(set, visit, attempt > 0, sorts));
      const outcome = await this.#queue.run(visited);
      if (outcome === 'complete') return;
      if (outcome === 'unordered') sorts = true;
    }
    throw new NetlinkError(operation, EINTR);
  }

  /**
   * Flags of the table, such as `NFT_TABLE_DORMANT`; undefined if the table does not exist.
   * @throws NetlinkError
   */
  tableFlags(): Promise<number | undefined> {
    const flags = this.#socket.get(tableRequest(this.#table), readTableFlags);
    return undefinedOnErrno(labelErrors(`nf_tables table ${this.#table.name}`, flags), ENOENT);
  }

  /**
   * Lists the chain names of the table; undefined if the table does not exist.
   * @throws NetlinkError
   */
  chains(): Promise<string[] | undefined> {
    return this.#listChains(readChain, (name) => name);
  }

  /**
   * Lists the chains of the table with their hooks; undefined if the table does not exist.
   * @throws NetlinkError
   */
  chainsWithHooks(): Promise<NftExistingChain[] | undefined> {
    return this.#listChains(readExistingChain, ({ name }) => name);
  }

  /**
   * Lists the rules of the table, or of one chain, by chain and in order; undefined if the table or
   * the chain does not exist.
   * @throws NetlinkError
   */
  rules(chain?: string): Promise<NftExistingRule[] | undefined> {
    const pick = (message: NetlinkMessage) => readRule(message, this.#table.name);
    return this.#list('rules', rulesRequest(this.#table, chain), pick, ownIndex);
  }

  /**
   * Reads one element of a hash set or hash map; undefined if the set or the element does not exist.
   * The time does not depend on the size of the set.
   * @throws NetlinkError
   */
  async findElement(set: string, key: Buffer): Promise<NftElement | undefined> {
    const request = elementRequest(this.#table, set, elementKeyAttribute({ key }));
    const pick = (message: NetlinkMessage) => {
      let found: NftElement | undefined;
      if (isElementsMessage(message)) visitElements(message, (element) => (found = element));
      return found;
    };
    const operation = `element of nf_tables set ${this.#table.name} ${set}`;
    return await undefinedOnErrno(labelErrors(operation, this.#socket.get(request, pick)), ENOENT);
  }

  /**
   * Lists the sets and maps of the table, including anonymous ones; undefined if the table does not
   * exist.
   * @throws NetlinkError
   */
  sets(): Promise<NftSet[] | undefined> {
    return this.#list('sets', setsRequest(this.#table), readSet, ownIndex);
  }

  /**
   * Lists the named counters of the table; undefined if the table does not exist.
   * @throws NetlinkError
   */
  counters(): Promise<NftCounter[] | undefined> {
    const { name } = this.#table;
    const pick = (message: NetlinkMessage) => readCounter(message, name);
    return this.#list('counters', countersRequest(this.#table), pick);
  }

  /**
   * Lists the flowtables of the table with their interfaces; undefined if the table does not exist.
   * @throws NetlinkError
   */
  flowtables(): Promise<NftFlowtable[] | undefined> {
    const { name } = this.#table;
    const pick = (message: NetlinkMessage) => readFlowtable(message, name);
    return this.#list('flowtables', flowtablesRequest(this.#table), pick);
  }

  /**
   * Deletes chains (with their rules), sets, counters and flowtables. No other object may refer to them. With sets uses
   * two transactions: before Linux 6.2 a chain cannot be deleted in the transaction that deletes a
   * map referring to it.
   * @throws NftRefusedError; NetlinkError if the outcome is unknown.
   */
  async remove(
    chains: readonly string[],
    sets: readonly string[],
    counters: readonly string[],
    flowtables: readonly string[],
  ): Promise<void> {
    const table = this.#table;
    const flushes = chains.map((name) => flushChainRequest(table, name));
    // Flushing empty chains alone would change nothing, and count as a transaction.
    if (sets.length > 0)
      await this.#send([...flushes, ...sets.map((name) => deleteSetRequest(table, name))]);
    await this.#send([
      ...(sets.length > 0 ? [] : flushes),
      ...chains.map((name) => deleteChainRequest(table, name)),
      ...counters.map((name) => deleteCounterRequest(table, name)),
      ...flowtables.map((name) => deleteFlowtableRequest(table, name)),
    ]);
  }

  /**
   * Deletes the table with its content. A missing table is not an error.
   * @throws NftRefusedError; NetlinkError if the outcome is unknown.
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
    const refusal = await this.#commit(async () => writer.finish());
    if (refusal !== undefined) throw new NftRefusedError(refusal.error);
  }

  #commit(pack: () => Promise<PackedMessages>): Promise<RefusedMessage | undefined> {
    const operation = `nf_tables transaction in ${this.#table.name}`;
    return this.#queue.run(async () => {
      const [refusal] = await labelErrors(operation, this.#socket.transaction(pack));
      if (refusal === undefined) countOwnTransaction();
      return refusal;
    });
  }

  /** Fails pending operations with ECANCELED. */
  async close(): Promise<void> {
    await this.#socket.close();
    portIds.delete(this.#socket.portId);
  }

  /**
   * @param ignoreOtherChanges Accept the dump even if nf_tables changes meanwhile.
   * @param sorts Join intervals of numbers after the dump, in one turn of the event loop. Otherwise
   * they are joined while they are read, which needs the order of the kernel.
   */
  async #visit(
    set: string,
    visit: (element: NftElement) => void,
    ignoreOtherChanges: boolean,
    sorts: boolean,
  ): Promise<'complete' | 'inconsistent' | 'unordered'> {
    const { flags } = await this.#socket.get(setRequest(this.#table, set), readSet);
    const dump = (pick: (message: NetlinkMessage) => void) =>
      this.#socket.dump(elementsRequest(this.#table, set), (message) => {
        if (isElementsMessage(message)) pick(message);
      });
    if ((flags & NFT_SET_FLAGS.dynamic) !== 0) {
      await dump((message) => visitElements(message, visit));
      return 'complete';
    }
    const isOrdered =
      (flags & (NFT_SET_FLAGS.interval | NFT_SET_FLAGS.concatenation)) === NFT_SET_FLAGS.interval;
    const joiner = isOrdered && !sorts ? new IntervalJoiner(visit) : undefined;
    const bounds: NftRawElement[] = [];
    const keys = new Set<string>();
    let generation: number | undefined;
    let outcome: 'complete' | 'inconsistent' | 'unordered' = 'complete';
    const add = (element: NftRawElement) => {
      if (joiner !== undefined) {
        if (!joiner.add(element)) outcome = 'unordered';
        return;
      }
      const key = `${element.isEnd === true ? 'end' : ''}${element.key.toString('latin1')}`;
      if (keys.has(key)) outcome = 'inconsistent';
      keys.add(key);
      if (isOrdered) bounds.push(element);
      else visit(element);
    };
    await dump((message) => {
      generation ??= genidOf(message);
      if (!ignoreOtherChanges && genidOf(message) !== generation) outcome = 'inconsistent';
      // Still receive the remaining messages.
      if (outcome === 'complete') visitElements(message, add);
    });
    if (outcome !== 'complete') return outcome;
    joiner?.end();
    for (const interval of intervalsOf(bounds)) visit(interval);
    return outcome;
  }

  #listChains<T>(
    read: (message: NetlinkMessage, table: string) => T | undefined,
    nameOf: (chain: T) => string,
  ): Promise<T[] | undefined> {
    const { family, name } = this.#table;
    const pick = (message: NetlinkMessage) => read(message, name);
    const united = uniteChains(nameOf, () => this.#countChains());
    return this.#list('chains', chainsRequest(family), pick, united);
  }

  /** The table counts all its objects together. Its sets are listed by an index of their own, and the others in one part. */
  async #countChains(): Promise<number> {
    const table = this.#table;
    const others = [
      await this.#socket.dumpOnce(setsRequest(table), readSet),
      await this.#socket.dumpOnce(countersRequest(table), (each) => readCounter(each, table.name)),
      await this.#socket.dumpOnce(flowtablesRequest(table), (each) =>
        readFlowtable(each, table.name),
      ),
    ];
    const use = await this.#socket.get(tableRequest(table), readTableUse);
    return others.reduce((count, { picked }) => count - picked.length, use);
  }

  async #list<T>(
    what: string,
    request: NetlinkRequest,
    pick: (message: NetlinkMessage) => T | undefined,
    completed?: (dumped: T[]) => Promise<T[] | undefined>,
  ): Promise<T[] | undefined> {
    const { name } = this.#table;
    const table = this.#socket.get(tableRequest(this.#table), readTable);
    const found = await undefinedOnErrno(labelErrors(`nf_tables table ${name}`, table), ENOENT);
    if (found === undefined) return undefined;
    const operation = `dump of nf_tables ${what} in ${name}`;
    const dump = () => labelErrors(operation, this.#socket.dumpOnce(request, pick));
    // Besides transactions of this thread, the table itself changes.
    const whole = this.#inBackground ? undefined : completed;
    const dumped = this.#queue.run(() => wholeDump(operation, dump, whole));
    return await undefinedOnErrno(dumped, ENOENT);
  }
}

/**
 * Lists the tables of all families; none if the kernel has no nf_tables.
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
 * Deletes a table with its content. A missing table is not an error.
 * @throws NftRefusedError, such as EPERM for a table owned by another process; NetlinkError.
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

/**
 * Takes an interrupted dump of rules or sets for whole: the kernel continues it at an index among the rules or sets of this
 * table only (nf_tables_dump_rules, nf_tables_dump_sets).
 */
async function ownIndex<T>(dumped: T[]): Promise<T[]> {
  return dumped;
}

function isEmpty(operation: NftOperation): boolean {
  if ('elements' in operation) return operation.elements.length === 0;
  if ('devices' in operation) return operation.devices.length === 0;
  return operation.action === 'remove' && operation.chains.length === 0;
}
