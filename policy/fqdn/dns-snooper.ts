/**
 * Learns the addresses of domain names from the answers that pods get, as long as there are names that
 * matter. An answer goes on when its addresses are known to the kernel; also when that fails, for DNS
 * itself is never kept from anybody.
 */
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import { Loop } from '../../sync/loop.ts';
import type { Timers } from '../../sync/timers.ts';
import type { FqdnContent, FqdnElement, FqdnEntry } from '../compile/change.ts';
import type { ListId } from '../model/terms.ts';
import { FqdnCache, type FqdnCacheOptions } from './cache.ts';
import { type MangleTable, syncDnsRules } from './dns-queue-rules.ts';
import type { DnsObservation } from './inspector.ts';
import { QueueThread } from './queue-thread.ts';
import type { CounterName, FromThread, ToThread } from './thread-messages.ts';

/** Where addresses are made known to the kernel. */
export interface FqdnStore {
  /** Resolves when packets may go there. */
  learn(elements: readonly FqdnElement[], answers: readonly FqdnEntry[]): Promise<void>;
  /** Packets need not go there any more: there was too much to remember. */
  forget(elements: readonly FqdnElement[], answers: readonly FqdnEntry[]): Promise<void>;
}

/** Is told what fails, for logs. All of it is tried again. */
export interface DnsSnooperObserver {
  /** Answers went on although their addresses are not known to the kernel. */
  addFailed(error: unknown): void;
  /** What was to go from the kernel before its time stays that long. */
  removeFailed(error: unknown): void;
  /** The rules that have packets queued could not be written. */
  rulesFailed(family: IpFamily, error: unknown): void;
  /** The thread that looks into packets ended; until another runs, they go by unseen. */
  threadFailed(error: unknown): void;
}

export interface DnsSnooperOptions {
  readonly store: FqdnStore;
  /** Of each family that is enforced. */
  readonly tables: readonly MangleTable[];
  readonly observer: DnsSnooperObserver;
  readonly timers: Timers;
  readonly cache?: FqdnCacheOptions;
  readonly queue?: number;
}

/** Ours, unless somebody else on the node has it. */
export const DNS_QUEUE = 2610;

const BACKOFF = { first: 1000, max: 60_000 };
/** Milliseconds between two looks for what has ended. */
const EXPIRY = 30_000;

export type DnsSnooperStats = ReturnType<DnsSnooper['stats']>;

export class DnsSnooper {
  readonly #options: DnsSnooperOptions;
  readonly #cache: FqdnCache;
  readonly #thread: QueueThread;
  readonly #queue: number;
  readonly #loops: readonly Loop[];
  /** undefined: not known yet. What an earlier agent left stays until then. */
  #patterns: ReadonlySet<string> | undefined;
  #resolvers: ReadonlySet<string> = new Set();
  #notLearned = 0;
  /** What failed and was not mended yet. */
  readonly #failing = new Set<IpFamily | 'thread'>();
  #expiry: unknown;

  constructor(options: DnsSnooperOptions) {
    const { tables, timers, observer, queue = DNS_QUEUE } = options;
    this.#options = options;
    this.#queue = queue;
    this.#cache = new FqdnCache(options.cache);
    this.#thread = new QueueThread({
      queue,
      timers,
      onMessage: (message, reply) => void this.#onMessage(message, reply),
      onFailure: (error) => {
        this.#failing.add('thread');
        observer.threadFailed(error);
      },
    });
    this.#loops = tables.map((table) => {
      const run = () => this.#writeRules(table);
      return new Loop({ run, minPeriod: 0, backoff: BACKOFF, timers });
    });
    this.#expire();
  }

  /** Has the thread be there before the first name, so that little is left to be done then. */
  prestart(): void {
    if (!this.#isActive) this.#thread.idle();
  }

  /** Takes over what an earlier agent learned. */
  restore(answers: readonly FqdnEntry[]): void {
    this.#cache.restore(answers, this.#options.timers.now());
  }

  /**
   * These names matter from now on. While there are none nothing is queued. It costs little when they
   * are the same as before.
   * @returns when lists have what is known already. A failure is told, and no rejection.
   */
  async setPatterns(names: ReadonlyMap<string, ReadonlySet<ListId>>): Promise<void> {
    const elements = this.#cache.setPatterns(names, this.#options.timers.now());
    const patterns = new Set(names.keys());
    if (this.#patterns === undefined || !isSame(patterns, this.#patterns)) {
      const was = this.#patterns && this.#isActive;
      this.#patterns = patterns;
      this.#configureThread();
      if (this.#isActive !== was) this.#requestRules();
    }
    if (elements.length === 0) return;
    try {
      await this.#options.store.learn(elements, []);
    } catch (error) {
      this.#options.observer.addFailed(error);
    }
  }

  /** @param resolvers Canonical addresses of those whose answers count. */
  setResolvers(resolvers: ReadonlySet<string>): void {
    if (isSame(resolvers, this.#resolvers)) return;
    this.#resolvers = new Set(resolvers);
    if (this.#patterns === undefined) return;
    this.#configureThread();
    this.#requestRules();
  }

  /** Everything that is known of a family, for whoever writes the kernel's tables anew. */
  fqdnContent(family: IpFamily): FqdnContent {
    const { elements, answers } = this.#cache.snapshot(this.#options.timers.now());
    const isOf = ({ address }: { readonly address: string }) => familyOf(address) === family;
    return { elements: elements.filter(isOf), answers: answers.filter(isOf) };
  }

  /** Compares the rules with the kernel's, which somebody may have changed, and writes them if need be. */
  resyncRules(): void {
    if (this.#hasNames) this.#requestRules();
  }

  /** What was counted since the start, and what there is. */
  stats() {
    const count = (what: CounterName) => this.#thread.count(what);
    return {
      queries: count('queries'),
      answers: count('answers'),
      unasked: count('unasked'),
      unreadable: count('unreadable'),
      givenUp: count('givenUp'),
      overdue: count('overdue'),
      /** Answers that could not be made known to the kernel. */
      notLearned: this.#notLearned,
      /**
       * Whether answers go by unseen although names matter: there are no resolvers, or the thread or the rules of a
       * family are not there.
       */
      isBlind: this.#hasNames && (this.#resolvers.size === 0 || this.#failing.size > 0),
      ...this.#cache.stats(),
    };
  }

  /** The rules stay: packets bypass a queue that nobody has. */
  async close(): Promise<void> {
    this.#options.timers.clear(this.#expiry);
    await Promise.all([this.#thread.stop(), ...this.#loops.map((loop) => loop.stop())]);
  }

  get #hasNames(): boolean {
    return this.#patterns !== undefined && this.#patterns.size > 0;
  }

  get #isActive(): boolean {
    return this.#hasNames && this.#resolvers.size > 0;
  }

  #configureThread(): void {
    if (!this.#isActive) {
      this.#thread.idle();
      return;
    }
    const patterns = [...(this.#patterns ?? [])];
    this.#thread.run({ patterns, resolvers: [...this.#resolvers] });
  }

  #requestRules(): void {
    for (const loop of this.#loops) loop.request();
  }

  async #writeRules(table: MangleTable): Promise<number | undefined> {
    try {
      const isWritten = await syncDnsRules(
        table,
        this.#isActive ? this.#resolvers : [],
        this.#queue,
      );
      this.#failing.delete(table.family);
      return isWritten ? 0 : undefined;
    } catch (error) {
      this.#failing.add(table.family);
      this.#options.observer.rulesFailed(table.family, error);
      throw error;
    }
  }

  async #onMessage(message: FromThread, reply: (message: ToThread) => void): Promise<void> {
    const { observer } = this.#options;
    if (message.kind === 'ready') this.#failing.delete('thread');
    if (message.kind === 'failed') observer.threadFailed(new Error(message.error));
    if (message.kind !== 'observations') return;
    const { first, batch } = message;
    try {
      await this.#learn(batch.flat());
    } catch (error) {
      this.#notLearned += batch.length;
      observer.addFailed(error);
    }
    reply({ kind: 'learned', first, last: first + batch.length - 1 });
  }

  /** In the order of the answers: what one has forgotten the next may bring again. */
  async #learn(observations: readonly DnsObservation[]): Promise<void> {
    const { store, timers, observer } = this.#options;
    const written: Promise<void>[] = [];
    let waiting: FqdnContent[] = [];
    const write = () => {
      const { elements, answers } = joined(waiting);
      waiting = [];
      if (answers.length > 0) written.push(store.learn(elements, answers));
    };
    for (const { name, addresses } of observations) {
      const { add: learn, remove: forget } = this.#cache.addAnswer(name, addresses, timers.now());
      if (forget.answers.length > 0) {
        write();
        store
          .forget(forget.elements, forget.answers)
          .catch((error) => observer.removeFailed(error));
      }
      waiting.push(learn);
    }
    write();
    const failure = (await Promise.allSettled(written)).find(({ status }) => status === 'rejected');
    if (failure?.status === 'rejected') throw failure.reason;
  }

  #expire(): void {
    const { timers } = this.#options;
    this.#cache.expire(timers.now());
    this.#expiry = timers.set(() => this.#expire(), EXPIRY);
  }
}

function isSame(one: ReadonlySet<string>, other: ReadonlySet<string>): boolean {
  return one.size === other.size && [...one].every((each) => other.has(each));
}

function joined(all: readonly FqdnContent[]): FqdnContent {
  return {
    elements: all.flatMap(({ elements }) => elements),
    answers: all.flatMap(({ answers }) => answers),
  };
}
