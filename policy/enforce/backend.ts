/** Network policy of one family in the kernel. */
import type { IpFamily } from '../../api/objects.ts';
import { addressFormatter } from '../../netlink/core/address.ts';
import { ENOENT, hasErrno } from '../../netlink/core/error.ts';
import {
  type NftCounter,
  type NftOperation,
  NftRefusedError,
} from '../../netlink/nftables/tables.ts';
import type { NftCommand } from '../../nft/command.ts';
import { SerialQueue } from '../../sync/serial-queue.ts';
import { TimeSlice } from '../../sync/time-slice.ts';
import { kernelChainNames, kernelChains } from '../compile/chains.ts';
import type {
  FqdnContent,
  FqdnElement,
  FqdnEntry,
  PolicyChange,
  PolicyElement,
  PolicySetChain,
  PolicyState,
} from '../compile/change.ts';
import {
  fqdnEntryElement,
  type KernelElement,
  readFqdnEntry,
  setElement,
} from '../compile/element.ts';
import {
  DENY_VERDICTS,
  type DenyVerdict,
  denyChain,
  NFT_SET_NAMES,
  type NftSetName,
  type PolicyTableOptions,
} from '../compile/policy-table.ts';
import { DIRECTIONS, type Direction } from '../model/terms.ts';
import { PolicyRefusedError } from './policy-refused-error.ts';
import { activeTable, fill, type PolicyTables, rebuild, type TableContent } from './rebuild.ts';
import { SetTtls } from './set-ttls.ts';

export interface PolicyBackendOptions extends PolicyTableOptions {
  /** What cannot be done, while the rest is. */
  readonly onWarning: (message: string) => void;
  /** Milliseconds, of a clock that only goes forward. */
  readonly now?: () => number;
}

/** Packets that were denied, unless somebody else took the table away since. */
export interface DeniedPackets {
  readonly denial: DenyVerdict;
  readonly direction: Direction;
  readonly packets: number;
}

/** An element that is refreshed may end in the moment between. */
const LEARN_ATTEMPTS = 3;

/** What waits to be learned, so that all of it becomes one transaction. */
interface PendingLearn extends FqdnContent {
  readonly elements: FqdnElement[];
  readonly answers: FqdnEntry[];
  readonly done: Promise<void>;
}

/**
 * Writes what it is told, one thing after the other, in the order of calls. It reads the kernel only
 * in `replaceAll`. After a failure, and when somebody else changed the table, it needs that: nothing less
 * would bring the kernel to a state that is known.
 */
export class PolicyBackend {
  readonly family: IpFamily;
  readonly #tables: PolicyTables;
  readonly #nft: NftCommand;
  readonly #options: PolicyBackendOptions;
  readonly #now: () => number;
  readonly #queue = new SerialQueue();
  #pending: PendingLearn | undefined;
  /** What the kernel has: not before `replaceAll`, nor after a failure or a change by others. */
  #isInSync = false;
  /** Whether a table was written whole. Before, its lists may be those of an earlier agent. */
  #hasWritten = false;
  /** From the call of `replaceAll` on until it is done. */
  #isReplacing = false;
  #denied: readonly DeniedPackets[] = [];
  #onInvalidated: (what: string) => void = () => {};
  /** Names of profiles' chains. */
  #chains = new Set<string>();
  #sizes = new Map<NftSetName, number>();
  readonly #learned = new SetTtls('learned');
  readonly #answers = new SetTtls('answers');

  constructor(tables: PolicyTables, nft: NftCommand, options: PolicyBackendOptions) {
    this.family = options.family;
    this.#tables = tables;
    this.#nft = nft;
    this.#options = options;
    this.#now = options.now ?? (() => performance.now());
  }

  /** Elements in the kernel, by set. */
  setSizes(): ReadonlyMap<string, number> {
    const { size: learned } = this.#learned;
    const { size: answers } = this.#answers;
    return new Map<string, number>([...this.#sizes, ['learned', learned], ['answers', answers]]);
  }

  onInvalidated(callback: (what: string) => void): void {
    this.#onInvalidated = callback;
  }

  /** The table is not what it should be: somebody else changed it, say. @param what in words for the log. */
  invalidate(what: string): void {
    if (!this.#isInSync) return;
    this.#isInSync = false;
    this.#onInvalidated(what);
  }

  /**
   * Brings the kernel from what it was given last to what is wanted now, in up to three transactions: what
   * nothing leads to yet; what is in force, all at once; what nothing leads to any more.
   * @throws PolicyRefusedError; NetlinkError when it is not known whether something was done.
   */
  apply(change: PolicyChange): Promise<void> {
    return this.#queue.run(async () => {
      try {
        await this.#apply(change);
      } catch (error) {
        this.#isInSync = false;
        throw this.#explained(error, change.chains);
      }
    });
  }

  /**
   * Has the table hold this and nothing else, whatever there is: nothing, a table of an earlier agent, of
   * another version, or one that somebody changed. What was in force is until this is, also where it
   * is broken off. Answers that were kept are.
   * @param state must stay as it is until the promise is settled.
   * @returns the number of elements.
   * @throws NftError, PolicyRefusedError, NetlinkError
   */
  replaceAll(state: PolicyState, learned: FqdnContent): Promise<number> {
    this.#isReplacing = true;
    // What is learned from now on is not in `learned`: it must not join what is written before this.
    this.#pending = undefined;
    return this.#queue.run(async () => {
      // What others do from here on is for the next time.
      this.#isInSync = true;
      try {
        return await this.#replaceAll(state, learned);
      } catch (error) {
        this.#isInSync = false;
        throw this.#explained(error, state.chains);
      } finally {
        this.#isReplacing = false;
      }
    });
  }

  /**
   * Has addresses of domain names be peers for a while, and keeps what they are of. One that is there
   * already lives on for as long as is said, unless it does anyway. Before `replaceAll` has succeeded
   * nothing is done: that is told what is known. A failure makes everything be written anew.
   * @returns when packets may go there; while everything is written anew at once, and they may soon.
   * @throws PolicyRefusedError, NetlinkError
   */
  async learn(elements: readonly FqdnElement[], answers: readonly FqdnEntry[]): Promise<void> {
    // What is of the other family must not wait for this one.
    if (elements.length + answers.length === 0) return;
    const done = this.#learnInTurn(elements, answers);
    if (!this.#isReplacing) return await done;
    // When hooks of tables go the kernel drops what waits in queues (nf_queue_nf_hook_drop), such as
    // the answers that nobody lets go on before this.
    done.catch(() => undefined);
  }

  #learnInTurn(elements: readonly FqdnElement[], answers: readonly FqdnEntry[]): Promise<void> {
    const waiting = this.#pending;
    if (waiting !== undefined) {
      waiting.elements.push(...elements);
      waiting.answers.push(...answers);
      return waiting.done;
    }
    const done = this.#queue.run(async () => {
      this.#pending = undefined;
      await this.#learn(pending);
    });
    const pending: PendingLearn = { elements: [...elements], answers: [...answers], done };
    this.#pending = pending;
    return done;
  }

  /**
   * Has addresses of domain names be peers no longer, before their time has come. Their timeouts do not
   * count. What is learned after it is called is learned after it. As `learn`, before `replaceAll`.
   * @throws PolicyRefusedError, NetlinkError
   */
  forget(elements: readonly FqdnElement[], answers: readonly FqdnEntry[]): Promise<void> {
    this.#pending = undefined;
    return this.#queue.run(() => this.#forget({ elements, answers }));
  }

  /** What is kept of answers, with the time that they have left; nothing without a table. */
  fqdnEntries(): Promise<FqdnEntry[]> {
    return this.#queue.run(() => this.#readAnswers());
  }

  /**
   * Zeros without a table. While the table is made anew, what was counted when somebody asked before: nothing
   * at first, for a zero would be a counter that was reset.
   */
  async deniedPackets(): Promise<readonly DeniedPackets[]> {
    if (this.#isReplacing) return this.#denied;
    return await this.#queue.run(async () => {
      this.#denied = deniedBy((await this.#tables.main.counters()) ?? []);
      return this.#denied;
    });
  }

  async #apply(change: PolicyChange): Promise<void> {
    const { prepare, remove, add, chains, cleanup: discard, cleanupChains: discardChains } = change;
    const parts = chains.flatMap((chain) => kernelChains(chain, this.family));
    // A packet that is under way when the chain of its pod is another one sees that with the rules
    // which it had before: none, had it come into being in the same moment.
    const fresh = parts.filter(({ name }) => !this.#chains.has(name));
    const changed = parts.filter(({ name }) => this.#chains.has(name));
    const stale = staleChains(chains, discardChains, this.#chains, this.family);

    await this.#tables.main.transact([...steps('add', prepare), ...fresh.map(fill)]);
    for (const { name } of fresh) this.#chains.add(name);
    this.#count(prepare, 1);
    await this.#tables.main.transact([
      ...steps('delete', remove),
      ...steps('add', add),
      ...changed.map(fill),
    ]);
    this.#count(remove, -1);
    this.#count(add, 1);
    await this.#tables.main.transact([
      ...steps('delete', discard),
      { action: 'remove', chains: stale },
    ]);
    for (const name of stale) this.#chains.delete(name);
    this.#count(discard, -1);
  }

  async #replaceAll({ chains, elements }: PolicyState, learned: FqdnContent): Promise<number> {
    const slice = new TimeSlice();
    const bySet = new Map<NftSetName, KernelElement[]>(NFT_SET_NAMES.map((set) => [set, []]));
    for (const origin of elements) {
      const { set, element } = setElement(origin);
      bySet.get(set)?.push(element);
      if (slice.isOver()) await slice.yield();
    }
    const sizes = new Map([...bySet].map(([set, { length }]) => [set, length]));
    const now = this.#now();
    const kept = await this.#readAnswers();
    this.#answers.clear();
    this.#learned.clear();
    const answers = this.#answers.missing(elementsOfAnswers([...kept, ...learned.answers]), now);
    const names = this.#learned.missing(elementsOfNames(learned.elements), now);
    bySet.set('answers', answers).set('learned', names);
    await this.#rebuild({ chains, elements: bySet });
    const parts = chains.flatMap((chain) => kernelChains(chain, this.family));
    this.#chains = new Set(parts.map(({ name }) => name));
    this.#learned.recordWritten(names, now);
    this.#answers.recordWritten(answers, now);
    this.#sizes = sizes;
    this.#hasWritten = true;
    return [...sizes.values()].reduce((sum, size) => sum + size, 0);
  }

  /** Without nflog where the kernel has none: that nobody hears of denials is better than none. */
  async #rebuild(content: TableContent): Promise<void> {
    const { logGroup, onWarning } = this.#options;
    try {
      await rebuild(this.#tables, this.#nft, this.#options, content);
    } catch (error) {
      const isLogging =
        logGroup !== undefined &&
        error instanceof NftRefusedError &&
        error.rule !== undefined &&
        DENY_VERDICTS.some((denial) => error.chain?.startsWith(denial));
      if (!isLogging) throw error;
      onWarning(`denied packets cannot be logged to group ${logGroup}: ${error.message}`);
      await rebuild(this.#tables, this.#nft, { ...this.#options, logGroup: undefined }, content);
    }
  }

  async #learn({ elements, answers }: FqdnContent): Promise<void> {
    if (!this.#hasWritten) return;
    for (let attempt = 1; ; attempt++) {
      const now = this.#now();
      const names = this.#learned.missing(elementsOfNames(elements), now);
      const kept = this.#answers.missing(elementsOfAnswers(answers), now);
      try {
        await this.#tables.main.transact([
          ...this.#learned.refresh(names),
          ...this.#answers.refresh(kept),
        ]);
        this.#learned.recordWritten(names, now);
        this.#answers.recordWritten(kept, now);
        return;
      } catch (error) {
        const hasEnded = error instanceof NftRefusedError && error.action === 'delete';
        if (!hasEnded || attempt === LEARN_ATTEMPTS) {
          this.invalidate(`cannot add to it: ${String(error)}`);
          throw this.#explained(error, []);
        }
      }
    }
  }

  async #forget({ elements, answers }: FqdnContent): Promise<void> {
    if (!this.#hasWritten) return;
    const names = elementsOfNames(elements);
    const kept = elementsOfAnswers(answers);
    try {
      await this.#tables.main.transact([
        ...this.#learned.remove(names),
        ...this.#answers.remove(kept),
      ]);
    } catch (error) {
      throw this.#explained(error, []);
    }
    this.#learned.recordRemoved(names);
    this.#answers.recordRemoved(kept);
  }

  async #readAnswers(): Promise<FqdnEntry[]> {
    const tables = await activeTable(this.#tables);
    const format = addressFormatter();
    let answers: FqdnEntry[] = [];
    try {
      await tables.visitElements(
        'answers',
        (element) => {
          const answer = readFqdnEntry(element, this.family, format);
          if (answer !== undefined) answers.push(answer);
        },
        () => {
          answers = [];
        },
      );
    } catch (error) {
      if (hasErrno(error, ENOENT)) return [];
      throw error;
    }
    return answers;
  }

  #count(elements: readonly PolicyElement[], change: 1 | -1): void {
    for (const { set } of elements) this.#sizes.set(set, (this.#sizes.get(set) ?? 0) + change);
  }

  #explained(error: unknown, chains: readonly PolicySetChain[]): unknown {
    if (!(error instanceof NftRefusedError)) return error;
    return new PolicyRefusedError(this.family, error, chains);
  }
}

function deniedBy(counters: readonly NftCounter[]): DeniedPackets[] {
  const packets = new Map(counters.map((each) => [each.name, Number(each.packets)]));
  return DENY_VERDICTS.flatMap((denial) =>
    DIRECTIONS.map((direction) => ({
      denial,
      direction,
      packets: packets.get(denyChain(denial, direction)) ?? 0,
    })),
  );
}

/** Elements, set by set. */
function steps(action: 'add' | 'delete', elements: readonly PolicyElement[]): NftOperation[] {
  const bySet = Map.groupBy(elements.map(setElement), ({ set }) => set);
  return [...bySet].map(([set, all]) => ({
    action,
    set,
    elements: all.map(({ element }) => element),
  }));
}

/** Chains that are there, of profiles that are not, or have only one now. */
function staleChains(
  chains: readonly PolicySetChain[],
  discarded: PolicyChange['cleanupChains'],
  there: ReadonlySet<string>,
  family: IpFamily,
): string[] {
  const wanted = new Set(
    chains.flatMap((chain) => kernelChains(chain, family)).map(({ name }) => name),
  );
  return [...chains, ...discarded]
    .flatMap(({ direction, profile }) => kernelChainNames(direction, profile))
    .filter((name) => there.has(name) && !wanted.has(name));
}

function elementsOfNames(elements: readonly FqdnElement[]): KernelElement[] {
  return elements.map((origin) => setElement(origin).element);
}

function elementsOfAnswers(answers: readonly FqdnEntry[]): KernelElement[] {
  return answers.flatMap((answer) => fqdnEntryElement(answer)?.element ?? []);
}
