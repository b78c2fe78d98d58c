/** Network policy of one family in the kernel. */
import type { IpFamily } from '../api/objects.ts';
import { addressFormatter } from '../netlink/address.ts';
import { ENOENT, hasErrno } from '../netlink/error.ts';
import {
  NFT_SET_FLAGS,
  type NfTables,
  NftRefusedError,
  type NftStep,
} from '../netlink/nftables.ts';
import { Slices } from '../netlink/slices.ts';
import { type NftCommand, NftError } from '../nftables/command.ts';
import { profileChainNames, profileChains } from './chains.ts';
import { type KernelElement, placed, placedAnswer, readAnswer } from './element.ts';
import { Lifetimes } from './lifetimes.ts';
import { PolicyRefusedError } from './refusal.ts';
import {
  type Answer,
  DIRECTIONS,
  type Direction,
  type LearnedElement,
  type PolicyChange,
  type PolicyElement,
  type PolicyState,
  type ProfileChain,
} from './shape.ts';
import {
  chainRules,
  closedTable,
  DENIALS,
  type Denial,
  declarations,
  denyChain,
  type PolicyChain,
  SET_NAMES,
  type SetName,
  type SkeletonOptions,
  standingChains,
} from './skeleton.ts';

export interface PolicyBackendOptions extends SkeletonOptions {
  readonly onWarning: (message: string) => void;
  /** Milliseconds, of a clock that only goes forward. */
  readonly now?: () => number;
}

/** What was learned of domain names. */
export interface Learned {
  readonly elements: readonly LearnedElement[];
  readonly answers: readonly Answer[];
}

/** Packets that were denied since the table was made. */
export interface Denied {
  readonly denial: Denial;
  readonly direction: Direction;
  readonly packets: number;
}

/** An element that is refreshed may end in the moment between. */
const LEARN_ATTEMPTS = 3;

/** What waits to be learned, so that all of it becomes one transaction. */
interface Lesson extends Learned {
  readonly elements: LearnedElement[];
  readonly answers: Answer[];
  readonly done: Promise<void>;
}

/**
 * Writes what it is told, one thing after the other, in the order of calls. It reads the kernel only
 * in `replaceAll`. After a failure, and when somebody else changed the table, it wants that
 * (`needsAll`): nothing less would bring the kernel to a state that is known.
 */
export class PolicyBackend {
  readonly family: IpFamily;
  readonly #tables: NfTables;
  readonly #nft: NftCommand;
  readonly #options: PolicyBackendOptions;
  readonly #now: () => number;
  readonly #standing: readonly PolicyChain[];
  #queue: Promise<unknown> = Promise.resolve();
  #lesson: Lesson | undefined;
  #isKnown = false;
  #onLoss: (what: string) => void = () => {};
  /** Names of profiles' chains. */
  #chains = new Set<string>();
  #sizes = new Map<SetName, number>();
  readonly #learned = new Lifetimes('learned');
  readonly #answers = new Lifetimes('answers');

  constructor(tables: NfTables, nft: NftCommand, options: PolicyBackendOptions) {
    this.family = options.family;
    this.#tables = tables;
    this.#nft = nft;
    this.#options = options;
    this.#now = options.now ?? (() => performance.now());
    this.#standing = standingChains(options);
  }

  /** Whether only `replaceAll` can tell what the kernel has afterwards. */
  get needsAll(): boolean {
    return !this.#isKnown;
  }

  /** Elements in the kernel, by set. */
  sizes(): ReadonlyMap<string, number> {
    const { size: learned } = this.#learned;
    const { size: answers } = this.#answers;
    return new Map<string, number>([...this.#sizes, ['learned', learned], ['answers', answers]]);
  }

  onLoss(callback: (what: string) => void): void {
    this.#onLoss = callback;
  }

  /** Somebody else changed the table. @param what in words for the log. */
  disturbed(what: string): void {
    if (!this.#isKnown) return;
    this.#isKnown = false;
    this.#onLoss(what);
  }

  /**
   * Brings the kernel from what it was given last to what is wanted now, in up to three transactions: what
   * nothing leads to yet; what is in force, all at once; what nothing leads to any more.
   * @throws PolicyRefusedError; NetlinkError when it is not known whether something was done.
   */
  apply(change: PolicyChange): Promise<void> {
    return this.#inTurn(async () => {
      try {
        await this.#apply(change);
      } catch (error) {
        this.#isKnown = false;
        throw this.#explained(error, change.chains);
      }
    });
  }

  /**
   * Has the table hold this and nothing else, in one transaction, whatever there is: nothing, a table of
   * an earlier agent, or one that somebody changed. The set of answers keeps what it has.
   * @param state must stay as it is until the promise is settled.
   * @returns the number of elements.
   * @throws NftError, PolicyRefusedError, NetlinkError; the kernel is as it was then, but for a table of
   * another version, see `closedTable`.
   */
  replaceAll(state: PolicyState, learned: Learned): Promise<number> {
    return this.#inTurn(async () => {
      // What others do from here on is for the next time.
      this.#isKnown = true;
      try {
        return await this.#replaceAll(state, learned);
      } catch (error) {
        this.#isKnown = false;
        throw this.#explained(error, state.chains);
      }
    });
  }

  /**
   * Has addresses of domain names be peers for a while, and keeps what they are of. One that is there
   * already lives on for as long as is said, unless it does anyway.
   * @throws PolicyRefusedError when there is no table; NetlinkError.
   */
  learn(elements: readonly LearnedElement[], answers: readonly Answer[]): Promise<void> {
    const waiting = this.#lesson;
    if (waiting !== undefined) {
      waiting.elements.push(...elements);
      waiting.answers.push(...answers);
      return waiting.done;
    }
    const done = this.#inTurn(async () => {
      this.#lesson = undefined;
      await this.#learn(lesson);
    });
    const lesson: Lesson = { elements: [...elements], answers: [...answers], done };
    this.#lesson = lesson;
    return done;
  }

  /**
   * Has addresses of domain names be peers no longer, before their time has come. Their timeouts do not
   * count. What is learned after it is called is learned after it.
   * @throws PolicyRefusedError when there is no table; NetlinkError.
   */
  forget(elements: readonly LearnedElement[], answers: readonly Answer[]): Promise<void> {
    this.#lesson = undefined;
    return this.#inTurn(() => this.#forget({ elements, answers }));
  }

  /** What is kept of answers, with the time that they have left; nothing without a table. */
  answers(): Promise<Answer[]> {
    return this.#inTurn(() => this.#readAnswers());
  }

  /** Zeros without a table. */
  async denied(): Promise<Denied[]> {
    const counters = (await this.#tables.counters()) ?? [];
    const packets = new Map(counters.map((each) => [each.name, Number(each.packets)]));
    return DENIALS.flatMap((denial) =>
      DIRECTIONS.map((direction) => ({
        denial,
        direction,
        packets: packets.get(denyChain(denial, direction)) ?? 0,
      })),
    );
  }

  async #apply(change: PolicyChange): Promise<void> {
    const { prepare, remove, add, chains, discard, discardChains } = change;
    const parts = chains.flatMap((chain) => profileChains(chain, this.family));
    // A packet that is under way when the chain of its pod is another one sees that with the rules
    // which it had before: none, had it come into being in the same moment.
    const fresh = parts.filter(({ name }) => !this.#chains.has(name));
    const changed = parts.filter(({ name }) => this.#chains.has(name));
    const stale = staleChains(chains, discardChains, this.#chains, this.family);

    await this.#tables.transact([...steps('add', prepare), ...fresh.map(fill)]);
    for (const { name } of fresh) this.#chains.add(name);
    this.#count(prepare, 1);
    await this.#tables.transact([
      ...steps('delete', remove),
      ...steps('add', add),
      ...changed.map(fill),
    ]);
    this.#count(remove, -1);
    this.#count(add, 1);
    await this.#tables.transact([...steps('delete', discard), { action: 'remove', chains: stale }]);
    for (const name of stale) this.#chains.delete(name);
    this.#count(discard, -1);
  }

  async #replaceAll({ chains, elements }: PolicyState, learned: Learned): Promise<number> {
    const slices = new Slices();
    const sizes = new Map<SetName, number>();
    const bySet = new Map<SetName, KernelElement[]>(SET_NAMES.map((set) => [set, []]));
    for (const origin of elements) {
      const { set, element } = placed(origin);
      bySet.get(set)?.push(element);
      if (slices.isOver()) await slices.turn();
    }
    for (const [set, { length }] of bySet) sizes.set(set, length);
    await this.#declare(bySet);

    const parts = chains.flatMap((chain) => profileChains(chain, this.family));
    const wanted = new Set([...this.#standing, ...parts].map(({ name }) => name));
    const strangers = ((await this.#tables.chains()) ?? []).filter((name) => !wanted.has(name));
    const now = this.#now();
    const kept = (await this.#readAnswers()).flatMap((answer) => placedAnswer(answer) ?? []);
    this.#answers.restart(
      kept.map(({ element }) => element),
      now,
    );
    const answers = this.#answers.wanting(elementsOfAnswers(learned.answers), now);
    this.#learned.restart([], now);
    const names = this.#learned.wanting(elementsOfNames(learned.elements), now);

    await this.#tables.transact([
      { action: 'clear' },
      ...SET_NAMES.filter((set) => set !== 'answers').map(
        (set) => ({ action: 'empty', set }) as const,
      ),
      ...[...this.#standing, ...parts].map(fill),
      ...[...bySet].map(([set, all]) => ({ action: 'add', set, elements: all }) as const),
      ...this.#learned.steps(names),
      ...this.#answers.steps(answers),
    ]);
    this.#learned.note(names, now);
    this.#answers.note(answers, now);
    this.#chains = new Set(parts.map(({ name }) => name));
    this.#sizes = sizes;
    await this.#removeStrangers(strangers);
    return [...sizes.values()].reduce((sum, size) => sum + size, 0);
  }

  /** Brings the table with its sets. */
  async #declare(elements: ReadonlyMap<SetName, readonly KernelElement[]>): Promise<void> {
    try {
      await this.#nft.run(declarations(this.#standing, this.family));
    } catch (error) {
      if (!(error instanceof NftError) || (await this.#tables.sets()) === undefined) throw error;
      this.#options.onWarning(
        'the table of network policy is of another version: it is replaced as a whole',
      );
      const pods = DIRECTIONS.flatMap((direction) =>
        (elements.get(`${direction}-pods`) ?? []).map(({ origin }) => origin),
      ) as Extract<PolicyElement, { set: `${Direction}-pods` }>[];
      await this.#nft.run(closedTable(this.#standing, pods, this.family));
    }
  }

  /** What nothing of ours leads to. */
  async #removeStrangers(chains: readonly string[]): Promise<void> {
    const known = new Set<string>(SET_NAMES);
    const sets = ((await this.#tables.sets()) ?? [])
      .filter(({ flags }) => (flags & NFT_SET_FLAGS.anonymous) === 0)
      .map(({ name }) => name);
    try {
      await this.#tables.remove(
        chains,
        sets.filter((name) => !known.has(name)),
      );
    } catch (error) {
      if (!(error instanceof NftRefusedError)) throw error;
      this.#options.onWarning(`cannot remove what is not ours: ${error.message}`);
    }
  }

  async #learn({ elements, answers }: Learned): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      const now = this.#now();
      const names = this.#learned.wanting(elementsOfNames(elements), now);
      const kept = this.#answers.wanting(elementsOfAnswers(answers), now);
      try {
        await this.#tables.transact([...this.#learned.steps(names), ...this.#answers.steps(kept)]);
        this.#learned.note(names, now);
        this.#answers.note(kept, now);
        return;
      } catch (error) {
        const hasEnded = error instanceof NftRefusedError && error.action === 'delete';
        if (!hasEnded || attempt === LEARN_ATTEMPTS) throw this.#explained(error, []);
      }
    }
  }

  async #forget({ elements, answers }: Learned): Promise<void> {
    const names = elementsOfNames(elements);
    const kept = elementsOfAnswers(answers);
    try {
      await this.#tables.transact([
        ...this.#learned.removal(names),
        ...this.#answers.removal(kept),
      ]);
    } catch (error) {
      throw this.#explained(error, []);
    }
    this.#learned.drop(names);
    this.#answers.drop(kept);
  }

  async #readAnswers(): Promise<Answer[]> {
    const format = addressFormatter();
    let answers: Answer[] = [];
    try {
      await this.#tables.visitElements(
        'answers',
        (element) => {
          const answer = readAnswer(element, this.family, format);
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

  #explained(error: unknown, chains: readonly ProfileChain[]): unknown {
    if (!(error instanceof NftRefusedError)) return error;
    return new PolicyRefusedError(this.family, error, chains);
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#queue.then(work);
    this.#queue = result.catch(() => undefined);
    return result;
  }
}

function fill(chain: PolicyChain): NftStep {
  return { action: 'fill', chain: chainRules(chain) };
}

/** Elements, set by set. */
function steps(action: 'add' | 'delete', elements: readonly PolicyElement[]): NftStep[] {
  const bySet = Map.groupBy(elements.map(placed), ({ set }) => set);
  return [...bySet].map(([set, all]) => ({
    action,
    set,
    elements: all.map(({ element }) => element),
  }));
}

/** Chains that are there, of profiles that are not, or have only one now. */
function staleChains(
  chains: readonly ProfileChain[],
  discarded: PolicyChange['discardChains'],
  there: ReadonlySet<string>,
  family: IpFamily,
): string[] {
  const wanted = new Set(
    chains.flatMap((chain) => profileChains(chain, family)).map(({ name }) => name),
  );
  return [...chains, ...discarded]
    .flatMap(({ direction, profile }) => profileChainNames(direction, profile))
    .filter((name) => there.has(name) && !wanted.has(name));
}

function elementsOfNames(elements: readonly LearnedElement[]): KernelElement[] {
  return elements.map((origin) => placed(origin).element);
}

function elementsOfAnswers(answers: readonly Answer[]): KernelElement[] {
  return answers.flatMap((answer) => placedAnswer(answer)?.element ?? []);
}
