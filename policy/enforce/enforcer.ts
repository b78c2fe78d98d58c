/** Keeps the kernel at what the model wants, in all families. */
import type { IpFamily } from '../../api/objects.ts';
import { addressFamily } from '../../netlink/core/address.ts';
import { watchNftables } from '../../netlink/nftables/tables.ts';
import { Runner, type Timers } from '../../sync/loop.ts';
import type { Learned, PolicyChange, PolicyState } from '../compile/change.ts';
import { POLICY_TABLE, POLICY_TABLES } from '../compile/skeleton.ts';
import type { FamilyKernel, PolicyKernel } from './kernel.ts';
import { isComplete } from './rebuild.ts';

/** What is wanted. */
export interface PolicySource {
  /** What each family has to do since the last call. */
  takeChanges(): readonly PolicyChange[];
  /** All that is wanted, as of the last `takeChanges`; stays as it is until the next. */
  all(family: IpFamily): PolicyState;
  /** What is known of domain names, when the whole table is written. */
  learned(family: IpFamily): Learned;
}

/** Is told what happens, for logs and metrics. */
export interface EnforcerObserver {
  /** There may be something to do; `unchanged`, `applied` or `failed` follows. */
  began(family: IpFamily): void;
  /** There was nothing. */
  unchanged(family: IpFamily): void;
  /** Changes of objects were turned into changes of the kernel, of all families. */
  compiled(milliseconds: number): void;
  /** @param isFull everything was written, because nobody knew what there was. */
  applied(family: IpFamily, isFull: boolean, milliseconds: number): void;
  /** It comes again by itself. */
  failed(family: IpFamily, error: unknown): void;
  /** Our table is not as it should be: somebody else changed it, say. It is written anew. */
  disturbed(family: IpFamily, what: string): void;
  /** Changes of others are not heard of, and so not mended. */
  deaf(error: unknown): void;
}

export interface EnforcerOptions {
  readonly kernel: PolicyKernel;
  readonly source: PolicySource;
  readonly observer: EnforcerObserver;
  readonly timers: Timers;
  /** Sockets of this process that change other tables (`NfTables.port`), to be left unheard. */
  readonly otherPorts?: readonly number[];
  /**
   * What others in this process have to load first: a load takes the kernel twice as long, and much
   * memory, while somebody listens. Default: nothing.
   */
  readonly othersLoaded?: Promise<void>;
}

/** Milliseconds between two mendings, should somebody change our table over and over. */
const MEND_PERIOD = 1000;
const BACKOFF = { first: 100, max: 30_000 };

/** One family. */
interface Member extends FamilyKernel {
  readonly runner: Runner;
  /** Taken from the source, and not applied yet. */
  readonly pending: PolicyChange[];
  /** A timer that is set, and when the last one ran out. */
  mending: unknown;
  mendedAt: number;
}

/** Nothing is written before `start`. Nothing is removed by `stop`: what was enforced is. */
export class Enforcer {
  readonly #options: EnforcerOptions;
  readonly #members = new Map<IpFamily, Member>();
  /** Families of which nothing was written yet, nor failed to be. */
  readonly #unwritten: Set<IpFamily>;
  #areOthersLoaded: boolean;
  #isStarted = false;
  #watch: { close(): Promise<void> } | undefined;

  /** @throws NetlinkError */
  constructor(options: EnforcerOptions) {
    this.#options = options;
    this.#unwritten = new Set(options.kernel.families.keys());
    this.#areOthersLoaded = options.othersLoaded === undefined;
    void options.othersLoaded?.then(() => {
      this.#areOthersLoaded = true;
      this.#listenWhenLoaded();
    });
    for (const [family, kernel] of options.kernel.families) {
      this.#members.set(family, this.#member(family, kernel));
    }
  }

  /**
   * Writes everything, and follows what changes from then on. Not before the source knows everything: what
   * an earlier agent enforced is until then.
   */
  start(): void {
    this.#isStarted = true;
    for (const { runner } of this.#members.values()) runner.request();
  }

  /** Something changed in the source. */
  changed(): void {
    if (!this.#isStarted) return;
    for (const { runner } of this.#members.values()) runner.request();
  }

  async stop(): Promise<void> {
    this.#isStarted = false;
    await this.#watch?.close();
    for (const { runner, mending } of this.#members.values()) {
      this.#options.timers.clear(mending);
      await runner.stop();
    }
  }

  #member(family: IpFamily, { tables, backend }: FamilyKernel): Member {
    const { observer, timers } = this.#options;
    const run = () => this.#run(family, member);
    const runner = new Runner({ run, minPeriod: 0, backoff: BACKOFF, timers });
    const member: Member = {
      tables,
      backend,
      runner,
      pending: [],
      mending: undefined,
      mendedAt: -Infinity,
    };
    backend.onLoss((what) => {
      observer.disturbed(family, what);
      this.#mend(member);
    });
    return member;
  }

  async #run(family: IpFamily, { backend, pending }: Member): Promise<boolean> {
    const { observer, source, timers } = this.#options;
    observer.began(family);
    try {
      this.#take();
      const isFull = backend.needsAll;
      if (!isFull && pending.length === 0) {
        observer.unchanged(family);
        return false;
      }
      const start = timers.now();
      if (isFull) {
        const { chains, elements } = source.all(family);
        // At once, for the other family may take changes meanwhile.
        const state = { chains, elements: [...elements] };
        pending.length = 0;
        await backend.replaceAll(state, source.learned(family));
      } else {
        for (const change of pending.splice(0)) await backend.apply(change);
      }
      observer.applied(family, isFull, timers.now() - start);
      return true;
    } catch (error) {
      observer.failed(family, error);
      throw error;
    } finally {
      this.#unwritten.delete(family);
      this.#listenWhenLoaded();
    }
  }

  /** Has each family know what is to be done in it. Whoever told of changes has all of them look. */
  #take(): void {
    const { observer, source, timers } = this.#options;
    const start = timers.now();
    let changes: readonly PolicyChange[];
    try {
      changes = source.takeChanges();
    } catch (error) {
      // Nobody knows how much of it was taken.
      for (const { backend } of this.#members.values()) backend.disturbed(String(error));
      throw error;
    }
    if (changes.length > 0) observer.compiled(timers.now() - start);
    for (const change of changes) this.#members.get(change.family)?.pending.push(change);
  }

  /** At once, unless that was just done. */
  #mend(member: Member): void {
    const { timers } = this.#options;
    timers.clear(member.mending);
    const wait = Math.max(member.mendedAt + MEND_PERIOD - timers.now(), 0);
    member.mending = timers.set(() => {
      member.mendedAt = timers.now();
      member.runner.request({ urgent: true });
    }, wait);
  }

  #listenWhenLoaded(): void {
    if (!this.#isStarted || !this.#areOthersLoaded || this.#unwritten.size > 0) return;
    if (this.#watch !== undefined) return;
    this.#listen();
    for (const member of this.#members.values()) void this.#lookForTable(member);
  }

  /** What others did before we listened, such as `nft flush ruleset`. */
  async #lookForTable({ tables, backend }: Member): Promise<void> {
    try {
      if (!(await isComplete(tables.main))) backend.disturbed(`no table ${POLICY_TABLE}`);
    } catch (error) {
      // Not of sockets that `stop` closed.
      if (this.#isStarted) backend.disturbed(`cannot look for the table: ${String(error)}`);
    }
  }

  #listen(): void {
    const { kernel, observer, otherPorts = [] } = this.#options;
    const disturb = (what: string, number?: number) => {
      for (const [family, { backend }] of this.#members) {
        if (number === undefined || addressFamily(family) === number) backend.disturbed(what);
      }
    };
    try {
      this.#watch = watchNftables({
        silencedPorts: [...kernel.ports, ...otherPorts],
        ownPorts: () => kernel.nft.processIds,
        onChange: ({ family, table, kind, isNew }) => {
          if (table === undefined || !POLICY_TABLES.includes(table)) return;
          disturb(`${kind} ${isNew ? 'added' : 'deleted'} in table ${table}`, family);
        },
        onOverrun: () => disturb('some notifications were lost'),
      });
    } catch (error) {
      observer.deaf(error);
      this.#watch = { close: async () => {} };
    }
  }
}
