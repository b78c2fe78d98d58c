/**
 * Builds a transaction from operations, and maps an error of the kernel back to the refused part.
 */
import { TimeSlice } from '../../sync/time-slice.ts';
import type { NetlinkError } from '../core/error.ts';
import type { NetlinkRequest } from '../core/message.ts';
import type { RefusedMessage } from '../core/socket.ts';
import { deleteChainRequest, newChainRequest } from './chain.ts';
import { declarationRequest } from './declaration.ts';
import { deleteFlowtableRequest, flowtableDevicesRequests } from './flowtable.ts';
import {
  deleteTableRequest,
  flushChainRequest,
  newRuleRequest,
  newTableRequest,
} from './message.ts';
import { TransactionWriter } from './transaction.ts';
import type { NftElement, NftElementChange, NftOperation, NftTable } from './types.ts';

/** The kernel refused a transaction. Nothing was applied. */
export class NftRefusedError extends Error {
  override readonly name = 'NftRefusedError';
  /**
   * The set of the first refused message; undefined if the transaction was refused as a whole or a
   * chain was refused.
   */
  readonly set: string | undefined;
  readonly action: NftElementChange['action'] | undefined;
  /**
   * The refused element if the kernel identified it. The kernel does not identify an element if the
   * set or table does not exist.
   */
  readonly element: NftElement | undefined;
  /** The chain that was refused, or whose rule was refused. */
  readonly chain: string | undefined;
  /** Index of the refused rule in the chain. */
  readonly rule: number | undefined;
  /** The expression of the rule that the kernel refused or lacks (ENOENT), such as `fib`, if the kernel said which. */
  readonly expression: string | undefined;
  /**
   * ENOENT: table, set, chain or element to delete does not exist. EEXIST, EBUSY: the key exists
   * with other data, or a declared object exists with another type. EINVAL: the element does not match the set. ENFILE: the set is full.
   */
  readonly errno: number;
  declare readonly cause: NetlinkError;

  constructor(cause: NetlinkError, refused: RefusedPart = {}) {
    const { change, element, chain, rule, expression } = refused;
    super(`${refusedText(refused)}: ${cause.code}`, { cause });
    this.set = change?.set;
    this.action = change?.action;
    this.element = element;
    this.chain = chain;
    this.rule = rule;
    this.expression = expression;
    this.errno = cause.errno;
  }
}

/** The part of a transaction that the kernel refused. */
interface RefusedPart {
  readonly change?: NftElementChange | undefined;
  readonly element?: NftElement | undefined;
  readonly chain?: string;
  readonly rule?: number;
  readonly expression?: string | undefined;
  /** A declared object, such as `set endpoints`. */
  readonly object?: string;
}

function refusedText({ change, element, chain, rule, expression, object }: RefusedPart): string {
  if (object !== undefined) return object;
  if (chain !== undefined) {
    if (rule === undefined) return `chain ${chain}`;
    const which = expression === undefined ? '' : `, expression ${expression}`;
    return `rule ${rule} of chain ${chain}${which}`;
  }
  if (change === undefined) return 'nf_tables transaction';
  const what = element === undefined ? 'elements' : `element ${element.key.toString('hex')}`;
  return `${change.action} ${what} in set ${change.set}`;
}

/** A transaction under construction. Records the element change, chain or rule of each message. */
export class TransactionBuilder {
  readonly writer: TransactionWriter;
  readonly #table: NftTable;
  readonly #changes: NftElementChange[] = [];
  /**
   * Chain or rule by message index. Does not contain element messages: `TransactionWriter` finds
   * their elements.
   */
  readonly #parts = new Map<number, RefusedPart>();

  constructor(table: NftTable) {
    this.#table = table;
    this.writer = new TransactionWriter(table.family, table.name);
  }

  /** Encodes the operations. Yields to the event loop. */
  async write(operations: readonly NftOperation[]): Promise<void> {
    const table = this.#table;
    const slice = new TimeSlice();
    for (const operation of operations) {
      if (operation.action === 'declare') this.#declare(operation);
    }
    for (const operation of operations) {
      if (operation.action !== 'fill') continue;
      const chain = operation.chain.name;
      this.#append(newChainRequest(table, chain), { chain });
    }
    for (const operation of operations) {
      switch (operation.action) {
        case 'add':
        case 'delete':
          this.#changes.push(operation);
          for (const element of operation.elements) {
            this.writer.write(operation.action, operation.set, element, operation.isOrdered);
            if (slice.isOver()) await slice.yield();
          }
          break;
        case 'fill': {
          const { name: chain, rules } = operation.chain;
          this.#append(flushChainRequest(table, chain), { chain });
          let rule = 0;
          for (const each of rules) {
            this.#append(newRuleRequest(table, chain, each), { chain, rule });
            rule += 1;
            if (slice.isOver()) await slice.yield();
          }
          break;
        }
        case 'remove':
          for (const chain of operation.chains)
            this.#append(flushChainRequest(table, chain), { chain });
          for (const chain of operation.chains)
            this.#append(deleteChainRequest(table, chain), { chain });
          break;
        case 'attach':
        case 'detach': {
          const { action, flowtable, devices } = operation;
          const verb = action === 'attach' ? 'NEW' : 'DEL';
          for (const request of flowtableDevicesRequests(verb, table, flowtable, devices))
            this.#append(request, { object: `flowtable ${flowtable}` });
          break;
        }
        case 'delete-flowtable': {
          const { flowtable } = operation;
          const object = `flowtable ${flowtable}`;
          this.#append(deleteFlowtableRequest(table, flowtable), { object });
          break;
        }
        case 'delete-table': {
          const object = `table ${operation.table}`;
          this.#append(deleteTableRequest({ ...table, name: operation.table }), { object });
          break;
        }
      }
    }
  }

  /** Converts the first refused message to an error. Later refusals may be a consequence of it. */
  refusedError({ index, error }: RefusedMessage): NftRefusedError {
    const offset = error.extendedAck?.offset;
    const elements = this.writer.refusedElements(index, offset);
    if (elements === undefined) {
      const part = this.#parts.get(index);
      if (part?.rule === undefined || offset === undefined) return new NftRefusedError(error, part);
      const expression = this.writer.refusedExpression(index, offset);
      return new NftRefusedError(error, { ...part, expression });
    }
    let before = 0;
    const position = elements.refused ?? elements.first;
    for (const change of this.#changes) {
      if (position < before + change.elements.length) {
        const element =
          elements.refused === undefined ? undefined : change.elements[position - before];
        return new NftRefusedError(error, { change, element });
      }
      before += change.elements.length;
    }
    return new NftRefusedError(error);
  }

  #declare({ replacesTable, declarations }: Extract<NftOperation, { action: 'declare' }>): void {
    const table = this.#table;
    const object = `table ${table.name}`;
    this.#append(newTableRequest(table), { object });
    if (replacesTable === true) {
      // Deleting a table that does not exist is an error.
      this.#append(deleteTableRequest(table), { object });
      this.#append(newTableRequest(table), { object });
    }
    for (const declared of declarations) {
      const request = declarationRequest(table, declared);
      this.#append(request, { object: `${declared.kind} ${declared.name}` });
    }
  }

  #append(request: NetlinkRequest, part: RefusedPart): void {
    this.#parts.set(this.writer.messages, part);
    this.writer.append(request);
  }
}
