/** policy/enforce/ brings network policy into the kernel; this keeps it there, in all families. */
import type { IpFamily } from '../../api/objects.ts';
import type { NftMonitor, ReportLoaded } from '../../nft/monitor.ts';
import { Loop } from '../../sync/loop.ts';
import type { Timers } from '../../sync/timers.ts';
import type { FqdnContent, PolicyChange, PolicyState } from '../compile/change.ts';
import { POLICY_TABLE, POLICY_TABLES } from '../compile/policy-table.ts';
import type { PolicyBackend } from './backend.ts';
import type { FamilyKernel, PolicyKernel } from './kernel.ts';
import { isComplete } from './rebuild.ts';

/** What is wanted. */
export interface PolicySource {
  /** What each family has to do since the last call. */
  takeChanges(): readonly PolicyChange[];
  /** All that is wanted, as of the last `takeChanges`; stays as it is until the next. */
  snapshot(family: IpFamily): PolicyState;
  /** What is known of domain names, when the whole table is written. */
  fqdnContent(family: IpFamily): FqdnContent;
}

/** Is told what happens, for logs and metrics. */
export interface EnforcerObserver {
  /** There may be something to do; `unchanged`, `applied` or `failed` follows. */
  started(family: IpFamily): void;
  /** There was nothing. */
  unchanged(family: IpFamily): void;
  /** Changes of objects were turned into changes of the kernel, of all families. */
  compiled(milliseconds: number): void;
  /** @param isFull everything was written, because nobody knew what there was. */
  applied(family: IpFamily, isFull: boolean, milliseconds: number): void;
  /** It comes again by itself. */
  failed(family: IpFamily, error: unknown): void;
  /** Our table is not as it should be: somebody else changed it, say. It is written anew. */
  driftDetected(family: IpFamily, what: string): void;
  /** Changes of others are not heard of, and so not mended. */
  watchFailed(error: unknown): void;
}

export interface EnforcerOptions {
  readonly kernel: PolicyKernel;
  readonly source: PolicySource;
  readonly observer: EnforcerObserver;
  readonly timers: Timers;
  readonly monitor: NftMonitor;
}

const BACKOFF = { first: 100, max: 30_000 };

/** One family. */
interface FamilyEnforcer extends FamilyKernel {
  readonly loop: Loop;
  /** Taken from the source, and not applied yet. */
  readonly pending: PolicyChange[];
}

/** Nothing is written before `start`. Nothing is removed by `stop`: what was enforced is. */
export class Enforcer {
  readonly #options: EnforcerOptions;
  readonly #families = new Map<IpFamily, FamilyEnforcer>();
  readonly #loaded: ReportLoaded;
  #isStarted = false;

  /** @throws NetlinkError */
  constructor(options: EnforcerOptions) {
    this.#options = options;
    const { families } = options.kernel;
    for (const [family, kernel] of families) {
      this.#families.set(family, this.#familyEnforcer(family, kernel));
    }
    this.#loaded = options.monitor.register({
      families: [...families.keys()],
      tables: POLICY_TABLES,
      onExternalChange: (family, what) => this.#families.get(family)?.backend.invalidate(what),
      onWatchStarted: (family) => void this.#checkTable(family),
      onWatchFailed: (error) => options.observer.watchFailed(error),
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
    for (const { loop } of this.#families.values()) loop.request();
  }

  async stop(): Promise<void> {
    this.#isStarted = false;
    for (const { loop } of this.#families.values()) await loop.stop();
  }

  #familyEnforcer(family: IpFamily, { tables, backend }: FamilyKernel): FamilyEnforcer {
    const { observer, timers } = this.#options;
    const pending: PolicyChange[] = [];
    const run = (full: boolean) => this.#run(family, backend, pending, full);
    const loop = new Loop({ run, minPeriod: 0, backoff: BACKOFF, timers });
    backend.onInvalidated((what) => {
      observer.driftDetected(family, what);
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
    observer.started(family);
    try {
      this.#takeChanges();
      if (!full && pending.length === 0) {
        observer.unchanged(family);
        return undefined;
      }
      const start = timers.now();
      if (full) {
        const { chains, elements } = source.snapshot(family);
        // At once, for the other family may take changes meanwhile.
        const state = { chains, elements: [...elements] };
        pending.length = 0;
        await backend.replaceAll(state, source.fqdnContent(family));
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
  #takeChanges(): void {
    const { observer, source, timers } = this.#options;
    const start = timers.now();
    let changes: readonly PolicyChange[];
    try {
      changes = source.takeChanges();
    } catch (error) {
      // Nobody knows how much of it was taken.
      for (const { backend } of this.#families.values()) backend.invalidate(String(error));
      throw error;
    }
    if (changes.length > 0) observer.compiled(timers.now() - start);
    for (const change of changes) this.#families.get(change.family)?.pending.push(change);
  }

  /** What others did before the monitor listened, such as `nft flush ruleset`. */
  async #checkTable(family: IpFamily): Promise<void> {
    const member = this.#families.get(family);
    if (member === undefined) return;
    const { tables, backend } = member;
    try {
      if (!(await isComplete(tables.main))) backend.invalidate(`no table ${POLICY_TABLE}`);
    } catch (error) {
      // Not of sockets that `stop` closed.
      if (this.#isStarted) backend.invalidate(`cannot look for the table: ${String(error)}`);
    }
  }
}
