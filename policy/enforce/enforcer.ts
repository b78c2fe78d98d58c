/**
 * policy/enforce/ programs network policy into the kernel. The enforcer keeps the policy tables in
 * sync with the desired state in every IP family.
 */
import type { IpFamily } from '../../api/objects.ts';
import type { NftMonitor, ReportLoaded } from '../../nft/monitor.ts';
import { Loop } from '../../sync/loop.ts';
import type { Timers } from '../../sync/timers.ts';
import type { FqdnContent, PolicyChange, PolicyState } from '../compile/change.ts';
import { POLICY_TABLES } from '../compile/policy-table.ts';
import type { PolicyBackend } from './backend.ts';
import type { FamilyKernel, PolicyKernel } from './kernel.ts';

/** The desired state. */
export interface PolicySource {
  /** Changes since the last call, by IP family. */
  takeChanges(): readonly PolicyChange[];
  /** The desired state as of the last `takeChanges`. Valid until `takeChanges` is called again. */
  snapshot(family: IpFamily): PolicyState;
  /** Content of the FQDN cache; needed when the whole table is written. */
  fqdnContent(family: IpFamily): FqdnContent;
}

/** Callbacks for logs and metrics. */
export interface EnforcerObserver {
  /** A run begins; `unchanged`, `applied` or `failed` follows. */
  started(family: IpFamily): void;
  /** There was nothing to apply. */
  unchanged(family: IpFamily): void;
  /** API object changes were compiled to kernel changes of all families. */
  compiled(milliseconds: number): void;
  /** @param isFull The whole table was written, because its content was unknown. */
  applied(family: IpFamily, isFull: boolean, milliseconds: number): void;
  /** The run is retried after a backoff. */
  failed(family: IpFamily, error: unknown): void;
  /**
   * The content of the policy table is unknown, for example after an external change or a failed
   * write. A full run follows.
   * @param isExternal Whether another program changed the table.
   */
  driftDetected(family: IpFamily, reason: string, isExternal: boolean): void;
  /**
   * Other programs may have changed the policy table without a notification. A full run follows.
   */
  missedChanges(family: IpFamily): void;
  /** External changes cannot be watched, so the enforcer does not repair them. */
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

/** The tables and the sync loop of one IP family. */
interface FamilyEnforcer extends FamilyKernel {
  readonly loop: Loop;
  /** Changes that were taken from the source and are not applied yet. */
  readonly pending: PolicyChange[];
}

/**
 * Keeps the policy tables of all IP families in sync. Writes nothing before `start`. `stop` removes
 * nothing: the kernel keeps enforcing the tables.
 */
export class Enforcer {
  readonly #options: EnforcerOptions;
  readonly #families = new Map<IpFamily, FamilyEnforcer>();
  readonly #reportLoaded: ReportLoaded;
  #isStarted = false;

  constructor(options: EnforcerOptions) {
    this.#options = options;
    const { families } = options.kernel;
    for (const [family, kernel] of families) {
      this.#families.set(family, this.#familyEnforcer(family, kernel));
    }
    this.#reportLoaded = options.monitor.register({
      families: [...families.keys()],
      tables: POLICY_TABLES,
      onExternalChange: (family, reason) =>
        this.#families.get(family)?.backend.invalidate(reason, true),
      onWatchStarted: () => {},
      onMissedChanges: (family) => {
        if (!this.#isStarted) return;
        options.observer.missedChanges(family);
        this.#families.get(family)?.loop.resync();
      },
      onWatchFailed: (error) => options.observer.watchFailed(error),
    });
  }

  /**
   * Requests the first run, which writes the whole table. Later runs apply changes. Call `start`
   * when the source has synced; until then the tables of an earlier agent stay in force.
   */
  start(): void {
    this.#isStarted = true;
    this.changed();
  }

  /** Requests a run, because the source has changes. Does nothing before `start`. */
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
    backend.onInvalidated((reason, isExternal) => {
      observer.driftDetected(family, reason, isExternal);
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
        // Copy now: a run of the other family may call `takeChanges` meanwhile.
        const state = { chains, elements: [...elements] };
        pending.length = 0;
        await backend.replaceAll(state, source.fqdnContent(family));
      } else {
        for (const change of pending.splice(0)) await backend.apply(change);
      }
      const duration = timers.now() - start;
      observer.applied(family, full, duration);
      return duration;
    } catch (error) {
      observer.failed(family, error);
      throw error;
    } finally {
      this.#reportLoaded(family);
    }
  }

  /**
   * Moves pending changes from the source to the queues of all IP families. `changed()` requests a
   * run of every family, and each run applies the queue of its family.
   */
  #takeChanges(): void {
    const { observer, source, timers } = this.#options;
    const start = timers.now();
    let changes: readonly PolicyChange[];
    try {
      changes = source.takeChanges();
    } catch (error) {
      // The failed call may have lost changes, so every family needs a full run.
      for (const { backend } of this.#families.values()) backend.invalidate(String(error));
      throw error;
    }
    if (changes.length > 0) observer.compiled(timers.now() - start);
    for (const change of changes) this.#families.get(change.family)?.pending.push(change);
  }
}
