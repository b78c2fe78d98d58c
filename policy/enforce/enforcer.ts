/** policy/enforce/ brings network policy into the kernel; this keeps it there, in all families. */
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import type { NftCommand } from '../../nft/command.ts';
import type { Loaded, NftMonitor } from '../../nft/monitor.ts';
import { Loop } from '../../sync/loop.ts';
import type { Timers } from '../../sync/timers.ts';
import { POLICY_TABLE, POLICY_TABLES } from '../compile/skeleton.ts';
import type { Answer, LearnedElement, PolicyChange, PolicyState } from '../model/shape.ts';
import { type Denied, type Learned, PolicyBackend } from './backend.ts';
import { isComplete, openPolicyTables, type PolicyTables } from './rebuild.ts';

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
  /** Something cannot be done, and the rest is. */
  warned(family: IpFamily, message: string): void;
  /** Changes of others are not heard of, and so not mended. */
  deaf(error: unknown): void;
}

export interface EnforcerOptions {
  readonly families: readonly IpFamily[];
  readonly source: PolicySource;
  readonly observer: EnforcerObserver;
  readonly nft: NftCommand;
  readonly timers: Timers;
  /** See `SkeletonOptions`. */
  readonly logGroup?: number | undefined;
  readonly monitor: NftMonitor;
  /** Default: of the kernel. */
  readonly open?: (family: IpFamily) => PolicyTables;
}

const BACKOFF = { first: 100, max: 30_000 };

/** One family. */
interface Member {
  readonly tables: PolicyTables;
  readonly backend: PolicyBackend;
  readonly loop: Loop;
  /** Taken from the source, and not applied yet. */
  readonly pending: PolicyChange[];
}

/** Nothing is written before `start`. Nothing is removed by `stop`: what was enforced is. */
export class Enforcer {
  readonly #options: EnforcerOptions;
  readonly #members = new Map<IpFamily, Member>();
  readonly #loaded: Loaded;
  #isStarted = false;

  /** @throws NetlinkError */
  constructor(options: EnforcerOptions) {
    this.#options = options;
    for (const family of options.families) this.#members.set(family, this.#member(family));
    this.#loaded = options.monitor.register({
      families: options.families,
      tables: POLICY_TABLES,
      changed: (family, what) => this.#members.get(family)?.backend.disturbed(what),
      listening: (family) => void this.#lookForTable(family),
      deaf: (error) => options.observer.deaf(error),
    });
  }

  /**
   * Writes everything, and follows what changes from then on. Not before the source knows everything: what
   * an earlier agent enforced is until then.
   */
  start(): void {
    this.#isStarted = true;
    this.changed();
  }

  /** Something changed in the source. */
  changed(): void {
    if (!this.#isStarted) return;
    for (const { loop } of this.#members.values()) loop.request();
  }

  /** Resolves when packets may go there. @throws as `PolicyBackend.learn` */
  learn(elements: readonly LearnedElement[], answers: readonly Answer[]): Promise<void> {
    return this.#inFamilies('learn', elements, answers);
  }

  /** Resolves when packets may go there no longer. @throws as `PolicyBackend.forget` */
  forget(elements: readonly LearnedElement[], answers: readonly Answer[]): Promise<void> {
    return this.#inFamilies('forget', elements, answers);
  }

  /** What is kept of answers, an earlier agent's included. @throws NetlinkError */
  async answers(): Promise<Answer[]> {
    const all = [...this.#members.values()].map(({ backend }) => backend.answers());
    return (await Promise.all(all)).flat();
  }

  /** By family. @throws NetlinkError */
  async denied(): Promise<ReadonlyMap<IpFamily, readonly Denied[]>> {
    const counts = [...this.#members].map(
      async ([family, { backend }]) => [family, await backend.denied()] as const,
    );
    return new Map(await Promise.all(counts));
  }

  /** Elements in the kernel, by set. */
  sizes(family: IpFamily): ReadonlyMap<string, number> {
    return this.#members.get(family)?.backend.sizes() ?? new Map();
  }

  async stop(): Promise<void> {
    this.#isStarted = false;
    for (const { loop, tables } of this.#members.values()) {
      await loop.stop();
      await Promise.all([tables.main.close(), tables.guard.close()]);
    }
  }

  async #inFamilies(
    what: 'learn' | 'forget',
    elements: readonly LearnedElement[],
    answers: readonly Answer[],
  ): Promise<void> {
    const all = [...this.#members].map(([family, { backend }]) => {
      const isOf = ({ address }: { readonly address: string }) => familyOf(address) === family;
      return backend[what](elements.filter(isOf), answers.filter(isOf));
    });
    await Promise.all(all);
  }

  #member(family: IpFamily): Member {
    const { nft, logGroup, observer, timers, open = openPolicyTables } = this.#options;
    const tables = open(family);
    const onWarning = (message: string) => observer.warned(family, message);
    const backend = new PolicyBackend(tables, nft, { family, logGroup, onWarning });
    const pending: PolicyChange[] = [];
    const run = (full: boolean) => this.#run(family, backend, pending, full);
    const loop = new Loop({ run, minPeriod: 0, backoff: BACKOFF, timers });
    backend.onLoss((what) => {
      observer.disturbed(family, what);
      loop.resync();
    });
    return { tables, backend, loop, pending };
  }

  async #run(
    family: IpFamily,
    backend: PolicyBackend,
    pending: PolicyChange[],
    full: boolean,
  ): Promise<number | undefined> {
    const { observer, source, timers } = this.#options;
    observer.began(family);
    try {
      this.#take();
      if (!full && pending.length === 0) {
        observer.unchanged(family);
        return undefined;
      }
      const start = timers.now();
      if (full) {
        const { chains, elements } = source.all(family);
        // At once, for the other family may take changes meanwhile.
        const state = { chains, elements: [...elements] };
        pending.length = 0;
        await backend.replaceAll(state, source.learned(family));
      } else {
        for (const change of pending.splice(0)) await backend.apply(change);
      }
      const took = timers.now() - start;
      observer.applied(family, full, took);
      return took;
    } catch (error) {
      observer.failed(family, error);
      throw error;
    } finally {
      this.#loaded(family);
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

  /** What others did before the monitor listened, such as `nft flush ruleset`. */
  async #lookForTable(family: IpFamily): Promise<void> {
    const member = this.#members.get(family);
    if (member === undefined) return;
    const { tables, backend } = member;
    try {
      if (!(await isComplete(tables.main))) backend.disturbed(`no table ${POLICY_TABLE}`);
    } catch (error) {
      // Not of sockets that `stop` closed.
      if (this.#isStarted) backend.disturbed(`cannot look for the table: ${String(error)}`);
    }
  }
}
