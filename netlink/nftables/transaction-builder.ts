/** A transaction of many steps, and what a refusal of it is about. */
import { TimeSlice } from '../../sync/time-slice.ts';
import type { NetlinkError } from '../core/error.ts';
import type { NetlinkRequest } from '../core/message.ts';
import type { RefusedMessage } from '../core/socket.ts';
import {
  deleteChainRequest,
  deleteTableRequest,
  flushChainRequest,
  newChainRequest,
  newRuleRequest,
} from './message.ts';
import { TransactionWriter } from './transaction.ts';
import type { NftElement, NftElementChange, NftOperation, NftTable } from './types.ts';

/** A transaction that the kernel refused; nothing of it was done. */
export class NftRefusedError extends Error {
  override readonly name = 'NftRefusedError';
  /** Where the refusal was met first; undefined when the transaction was refused as a whole. */
  readonly set: string | undefined;
  readonly action: NftElementChange['action'] | undefined;
  /** The refused one, if the kernel named it: a set or a table that is not there has none. */
  readonly element: NftElement | undefined;
  /** The chain that was refused, or whose rule was. */
  readonly chain: string | undefined;
  /** Which of its rules, counted from 0. */
  readonly rule: number | undefined;
  /**
   * ENOENT: no such table, set, chain or, to delete, element; EEXIST, EBUSY: the key is there with
   * other data; EINVAL: not of the set's kind; ENFILE: the set is full.
   */
  readonly errno: number;
  declare readonly cause: NetlinkError;

  constructor(cause: NetlinkError, refused: RefusedPart = {}) {
    const { change, element, chain, rule } = refused;
    super(`${refusedText(refused)}: ${cause.code}`, { cause });
    this.set = change?.set;
    this.action = change?.action;
    this.element = element;
    this.chain = chain;
    this.rule = rule;
    this.errno = cause.errno;
  }
}

/** What a refusal is about. */
interface RefusedPart {
  readonly change?: NftElementChange | undefined;
  readonly element?: NftElement | undefined;
  readonly chain?: string;
  readonly rule?: number;
}

function refusedText({ change, element, chain, rule }: RefusedPart): string {
  if (chain !== undefined)
    return rule === undefined ? `chain ${chain}` : `rule ${rule} of ${chain}`;
  if (change === undefined) return 'nf_tables transaction';
  const key = element === undefined ? '' : ` ${element.key.toString('hex')}`;
  return `${change.action} ${change.set}${key}`;
}

/** A transaction while it is made up, which remembers what its messages are about. */
export class TransactionBuilder {
  readonly writer: TransactionWriter;
  readonly #table: NftTable;
  readonly #changes: NftElementChange[] = [];
  /** Of messages that are no lists of elements. */
  readonly #about = new Map<number, RefusedPart>();

  constructor(table: NftTable) {
    this.#table = table;
    this.writer = new TransactionWriter(table.family, table.name);
  }

  /** The event loop gets turns meanwhile. */
  async write(steps: readonly NftOperation[]): Promise<void> {
    const table = this.#table;
    const slice = new TimeSlice();
    for (const step of steps) {
      if (step.action !== 'fill') continue;
      const chain = step.chain.name;
      this.#append(newChainRequest(table, chain), { chain });
    }
    for (const step of steps) {
      switch (step.action) {
        case 'add':
        case 'delete':
          this.#changes.push(step);
          for (const element of step.elements) {
            this.writer.write(step.action, step.set, element);
            if (slice.isOver()) await slice.yield();
          }
          break;
        case 'fill': {
          const { name: chain, rules } = step.chain;
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
          for (const chain of step.chains) this.#append(flushChainRequest(table, chain), { chain });
          for (const chain of step.chains)
            this.#append(deleteChainRequest(table, chain), { chain });
          break;
        case 'delete-table':
          this.#append(deleteTableRequest({ ...table, name: step.table }), {});
          break;
      }
    }
  }

  /** Of the refusals the first: others may be due to it. */
  refused({ index, error }: RefusedMessage): NftRefusedError {
    const elements = this.writer.refusedElements(index, error.extendedAck?.offset);
    if (elements === undefined) return new NftRefusedError(error, this.#about.get(index));
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

  #append(request: NetlinkRequest, about: RefusedPart): void {
    this.#about.set(this.writer.messages, about);
    this.writer.append(request);
  }
}
