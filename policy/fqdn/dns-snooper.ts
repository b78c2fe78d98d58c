/**
 * Resolves domain names in policies by observing the DNS answers to pods, while a policy rule
 * has domain names. The verdict on an answer is deferred until its addresses are in the kernel. If
 * storing the addresses fails or takes too long, the answer is accepted anyway.
 */
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import { SerialQueue } from '../../sync/serial-queue.ts';
import type { Timers } from '../../sync/timers.ts';
import type { FqdnContent, FqdnElement, FqdnEntry } from '../compile/change.ts';
import { DNS_QUEUE } from '../compile/dns-chains.ts';
import type { ListId } from '../model/terms.ts';
import { FqdnCache, type FqdnCacheOptions } from './cache.ts';
import type { DnsObservation } from './inspector.ts';
import { QueueThread } from './queue-thread.ts';
import type { CounterName, FromThread, ToThread } from './thread-messages.ts';

/** Queues DNS packets, and stores observed addresses, in the kernel. */
export interface FqdnStore {
  /**
   * Queues DNS packets to and from these resolvers, and no others, for some seconds. Rejects if the kernel cannot do so.
   */
  queueDns(resolvers: readonly string[]): Promise<void>;
  /** Number of answers that the kernel did not queue, because they did not come from the resolver's interface. */
  forgedAnswers(): Promise<number>;
  /** Resolves when packets to the addresses may pass, or at once while the table is replaced. */
  addFqdnAddresses(elements: readonly FqdnElement[], entries: readonly FqdnEntry[]): Promise<void>;
  /** Removes addresses that the FQDN cache evicted. */
  removeFqdnAddresses(
    elements: readonly FqdnElement[],
    entries: readonly FqdnEntry[],
  ): Promise<void>;
}

/** Callbacks that report failures to the log. */
export interface DnsSnooperObserver {
  /** Answers were accepted although their addresses could not be stored. */
  addFailed(error: unknown): void;
  /** Evicted addresses could not be removed from the kernel; they stay until they expire. */
  removeFailed(error: unknown): void;
  /** The kernel does not queue DNS packets. Called once for consecutive failures; retries follow. */
  queueFailed(error: unknown): void;
  /** Answers arrived on another interface than the way back to the resolver, at most every 30 seconds. */
  answersForged(count: number): void;
  /** The inspection thread ended. It is restarted; until then, packets bypass the queue. */
  threadFailed(error: unknown): void;
  /** The inspection thread failed to inspect a packet. */
  packetFailed(error: unknown): void;
}

export interface DnsSnooperOptions {
  readonly store: FqdnStore;
  readonly observer: DnsSnooperObserver;
  readonly timers: Timers;
  readonly cache?: FqdnCacheOptions;
}

/** Milliseconds between removals of expired cache entries, and between reports of forged answers. */
const EXPIRY_PERIOD = 30_000;

export type DnsSnooperStats = ReturnType<DnsSnooper['stats']>;

export class DnsSnooper {
  readonly #options: DnsSnooperOptions;
  readonly #cache: FqdnCache;
  readonly #thread: QueueThread;
  /** Domain name patterns of policy rules. undefined until `setPatterns`. */
  #patterns: ReadonlySet<string> | undefined;
  #resolvers: ReadonlySet<string> = new Set();
  /** Number of answers whose addresses could not be stored. */
  #notStored = 0;
  /** Parts whose last attempt failed. */
  readonly #failing = new Set<'queue' | 'thread'>();
  readonly #renewals = new SerialQueue();
  /** Whether a renewal waits for an earlier one. */
  #isRenewalWaiting = false;
  /** Value of the counter at the last report; undefined before the first. */
  #forgedAnswers: number | undefined;
  #expiry: unknown;

  constructor(options: DnsSnooperOptions) {
    const { timers, observer } = options;
    this.#options = options;
    this.#cache = new FqdnCache(options.cache);
    this.#thread = new QueueThread({
      queue: DNS_QUEUE,
      timers,
      onMessage: (message, reply) => void this.#onMessage(message, reply),
      onFailure: (error) => {
        this.#failing.add('thread');
        observer.threadFailed(error);
      },
    });
    this.#expire();
  }

  /** Starts the thread in advance, so that the first domain name takes effect sooner. */
  prestart(): void {
    if (!this.#isActive) this.#thread.idle();
  }

  /** Restores the FQDN cache of an earlier agent. */
  restore(entries: readonly FqdnEntry[]): void {
    this.#cache.restore(entries, this.#options.timers.now());
  }

  /**
   * Sets the domain name patterns of policy rules, with the peer lists of each pattern. Without
   * patterns no packets are queued. Cheap if nothing changed.
   * @returns when the peer lists contain the cached addresses. A failure is reported to the
   * observer and does not reject the promise.
   */
  async setPatterns(listsByPattern: ReadonlyMap<string, ReadonlySet<ListId>>): Promise<void> {
    const elements = this.#cache.setPatterns(listsByPattern, this.#options.timers.now());
    const patterns = new Set(listsByPattern.keys());
    if (this.#patterns === undefined || !isSame(patterns, this.#patterns)) {
      this.#patterns = patterns;
      this.#configure();
    }
    if (elements.length === 0) return;
    try {
      await this.#options.store.addFqdnAddresses(elements, []);
    } catch (error) {
      this.#options.observer.addFailed(error);
    }
  }

  /** @param resolvers Canonical addresses of trusted resolvers. */
  setResolvers(resolvers: ReadonlySet<string>): void {
    if (isSame(resolvers, this.#resolvers)) return;
    this.#resolvers = new Set(resolvers);
    if (this.#patterns !== undefined) this.#configure();
  }

  /** The cache content of one IP family, for a full write of the policy table. */
  fqdnContent(family: IpFamily): FqdnContent {
    const { elements, entries } = this.#cache.snapshot(this.#options.timers.now());
    const isOf = ({ address }: { readonly address: string }) => familyOf(address) === family;
    return { elements: elements.filter(isOf), entries: entries.filter(isOf) };
  }

  /** Whether a peer list has an address because a domain name resolved to it. */
  hasPeer(list: ListId, address: string): boolean {
    return this.#cache.hasPeer(list, address, this.#options.timers.now());
  }

  /** Counters since the start, and cache sizes. */
  stats() {
    const count = (what: CounterName) => this.#thread.count(what);
    return {
      queries: count('queries'),
      answers: count('answers'),
      unasked: count('unasked'),
      unreadable: count('unreadable'),
      givenUp: count('givenUp'),
      overdue: count('overdue'),
      /** Answers whose addresses could not be stored in the kernel. */
      notLearned: this.#notStored,
      /**
       * Whether answers are not observed although rules have domain names: no resolver is known, or
       * the thread failed, or the kernel does not queue DNS packets.
       */
      isNotObserving: this.#hasNames && (this.#resolvers.size === 0 || this.#failing.size > 0),
      ...this.#cache.stats(),
    };
  }

  /** Stops the snooper. Packets bypass a queue without a listener. */
  async close(): Promise<void> {
    this.#options.timers.clear(this.#expiry);
    await this.#thread.stop();
    await this.#renewals.run(async () => {});
  }

  get #hasNames(): boolean {
    return this.#patterns !== undefined && this.#patterns.size > 0;
  }

  get #isActive(): boolean {
    return this.#hasNames && this.#resolvers.size > 0;
  }

  /** The thread answers new settings with a sign of life, which renews the resolvers. */
  #configure(): void {
    if (this.#isActive) {
      const patterns = [...(this.#patterns ?? [])];
      this.#thread.run({ patterns, resolvers: [...this.#resolvers] });
    } else {
      this.#thread.idle();
      this.#renewResolvers();
    }
  }

  /**
   * Queues the packets of the resolvers for some seconds. Called while the thread lives: without it or the main thread the
   * resolvers expire in the kernel, and DNS packets bypass the queue.
   */
  #renewResolvers(): void {
    if (this.#isRenewalWaiting) return;
    this.#isRenewalWaiting = true;
    const { store, observer } = this.#options;
    void this.#renewals.run(async () => {
      this.#isRenewalWaiting = false;
      try {
        await store.queueDns(this.#isActive ? [...this.#resolvers] : []);
        this.#failing.delete('queue');
      } catch (error) {
        if (!this.#failing.has('queue')) observer.queueFailed(error);
        this.#failing.add('queue');
      }
    });
  }

  async #onMessage(message: FromThread, reply: (message: ToThread) => void): Promise<void> {
    const { observer } = this.#options;
    if (message.kind === 'ready') this.#failing.delete('thread');
    if (message.kind === 'alive' && this.#isActive) this.#renewResolvers();
    if (message.kind === 'failed') observer.packetFailed(new Error(message.error));
    if (message.kind !== 'observations') return;
    const { first, batch } = message;
    try {
      await this.#store(batch.flat());
    } catch (error) {
      this.#notStored += batch.length;
      observer.addFailed(error);
    }
    reply({ kind: 'stored', first, last: first + batch.length - 1 });
  }

  /**
   * Stores observations in the order of answers: a later answer may add an address that an earlier
   * answer evicted.
   */
  async #store(observations: readonly DnsObservation[]): Promise<void> {
    const { store, timers, observer } = this.#options;
    const written: Promise<void>[] = [];
    let pending: FqdnContent[] = [];
    const write = () => {
      const { elements, entries } = joined(pending);
      pending = [];
      if (entries.length > 0) written.push(store.addFqdnAddresses(elements, entries));
    };
    for (const { name, addresses } of observations) {
      const { add, remove } = this.#cache.addAnswer(name, addresses, timers.now());
      if (remove.entries.length > 0) {
        write();
        store
          .removeFqdnAddresses(remove.elements, remove.entries)
          .catch((error) => observer.removeFailed(error));
      }
      pending.push(add);
    }
    write();
    const failure = (await Promise.allSettled(written)).find(({ status }) => status === 'rejected');
    if (failure?.status === 'rejected') throw failure.reason;
  }

  #expire(): void {
    const { timers } = this.#options;
    this.#cache.expire(timers.now());
    void this.#reportForgedAnswers();
    this.#expiry = timers.set(() => this.#expire(), EXPIRY_PERIOD);
  }

  async #reportForgedAnswers(): Promise<void> {
    const { store, observer } = this.#options;
    if (!this.#isActive) return;
    try {
      const count = await store.forgedAnswers();
      const before = this.#forgedAnswers ?? count;
      this.#forgedAnswers = count;
      if (count > before) observer.answersForged(count - before);
    } catch {
      // The next report has the total.
    }
  }
}

function isSame(one: ReadonlySet<string>, other: ReadonlySet<string>): boolean {
  return one.size === other.size && [...one].every((each) => other.has(each));
}

function joined(all: readonly FqdnContent[]): FqdnContent {
  return {
    elements: all.flatMap(({ elements }) => elements),
    entries: all.flatMap(({ entries }) => entries),
  };
}
