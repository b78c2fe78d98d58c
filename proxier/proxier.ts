import { setImmediate as nextTurn } from 'node:timers/promises';
import { familyOf, isLoopback } from '../api/addresses.ts';
import { compareText } from '../api/collections.ts';
import type { IpFamily } from '../api/objects.ts';
import { Runner } from '../sync/loop.ts';
import type { Timers } from '../sync/timers.ts';
import type { NodeFacts } from './backend.ts';
import type { FamilyProxier, SyncReport } from './family-proxier.ts';
import type { RefusalChanges, RouteTable } from './route-table.ts';

export interface ProxierOptions {
  readonly table: RouteTable;
  readonly families: readonly FamilyProxier[];
  /** The node's IP, in place of that which the Node object has for its family. */
  readonly nodeIp?: string | undefined;
  /** Least milliseconds between two syncs of a family. */
  readonly minSyncPeriod: number;
  /** Milliseconds between two looks whether the rules still stand. */
  readonly syncPeriod: number;
  readonly timers: Timers;
  readonly observer: ProxierObserver;
}

/** Hears what the proxier does. */
export interface ProxierObserver {
  refusals(changes: RefusalChanges): void;
  /** What is known of the node changed. */
  nodeFacts(family: IpFamily, facts: NodeFacts): void;
  /** There may be something to write; told of once or several times until it is. */
  queued(family: IpFamily): void;
  /**
   * What was queued is nothing for this family: the kernel has what it should.
   * @param triggerTimes as in `SyncReport`.
   */
  unchanged(family: IpFamily, triggerTimes: readonly number[]): void;
  synced(report: SyncReport): void;
  syncFailed(family: IpFamily, error: unknown, attempt: SyncAttempt): void;
  /** Somebody else changed our rules; `what` says which. */
  rulesLost(family: IpFamily, what: string): void;
  /** It could not be told whether the rules still stand. */
  checkFailed(family: IpFamily, error: unknown): void;
  /** The check of the rules ran, whatever it found. */
  checked(family: IpFamily): void;
}

/** A sync that failed. */
export interface SyncAttempt {
  readonly full: boolean;
  readonly seconds: number;
}

/** Everything is compared with the kernel at least this often, as in kube-proxy. */
const FULL_SYNC_PERIOD = 60 * 60 * 1000;
/**
 * And oftener, as long as that takes no more than one part in so many of the time, in modes that do
 * not hear of what others do: changes have to wait meanwhile.
 */
const COMPARISON_SHARE = 100;
const BACKOFF = { first: 500, max: 30_000 };
/** Services resolved before the event loop gets a turn. */
const SERVICES_PER_TURN = 50;

/**
 * The loop from changed objects to the kernel: collects changes by Service, resolves them to
 * Routes, and lets each family sync on its own, so that one that fails does not hold up the other.
 */
export class Proxier {
  readonly #options: ProxierOptions;
  readonly #runners: Map<FamilyProxier, Runner>;
  /** When everything was last compared with the kernel, and when that is due again. */
  readonly #nextFull = new Map<FamilyProxier, number>();
  /** Asked for a sync since their last one began. */
  readonly #queued = new Set<FamilyProxier>();
  #draining: Promise<void> | undefined;
  #addresses: readonly string[] | undefined;
  readonly #checkTimers = new Map<FamilyProxier, unknown>();
  readonly #checking = new Map<FamilyProxier, Promise<void>>();
  #stopped = false;

  constructor(options: ProxierOptions) {
    this.#options = options;
    this.#runners = new Map(
      options.families.map((family) => [
        family,
        new Runner({
          run: () => this.#sync(family),
          minPeriod: options.minSyncPeriod,
          backoff: BACKOFF,
          timers: options.timers,
        }),
      ]),
    );
    for (const [family, runner] of this.#runners) {
      family.onLoss(() => void this.#checkFamily(family, runner));
      this.#scheduleCheck(family, runner);
    }
  }

  /** There may be something to do. */
  request(): void {
    for (const family of this.#runners.keys()) this.#request(family);
  }

  /**
   * All addresses of this node; nothing is programmed before they are known. Does not wait for the
   * least period: an address that a Service must let go of is urgent.
   */
  setNodeAddresses(addresses: readonly string[]): void {
    // Several devices may have one.
    const unique = new Set(addresses);
    this.#addresses = [...unique].sort(compareText);
    this.#options.table.setNodeAddresses(unique);
    for (const family of this.#runners.keys()) this.#request(family, { urgent: true });
  }

  /** Ends after the syncs that run now; the kernel keeps its rules. */
  async stop(): Promise<void> {
    this.#stopped = true;
    for (const timer of this.#checkTimers.values()) this.#options.timers.clear(timer);
    await Promise.all([...this.#runners.values()].map((runner) => runner.stop()));
    await Promise.all(this.#checking.values());
  }

  /** Nothing is programmed before everything is known that rules follow from. */
  get #isReady(): boolean {
    return this.#options.table.isSynced && this.#addresses !== undefined;
  }

  #request(family: FamilyProxier, options: { urgent?: boolean } = {}): void {
    this.#runners.get(family)?.request(options);
    if (!this.#isReady) return;
    this.#queued.add(family);
    this.#options.observer.queued(family.family);
  }

  async #sync(family: FamilyProxier): Promise<boolean> {
    const { observer, timers } = this.#options;
    if (!this.#isReady) return false;
    this.#queued.delete(family);
    const started = timers.now();
    const full = family.isFullDue;
    try {
      await this.#drain();
      const isDue = family.needsSync;
      if (isDue) {
        // What was done before it listened is found by the comparison after that.
        const { hearsOthers } = family;
        const report = await family.sync();
        const rest = hearsOthers ? FULL_SYNC_PERIOD : restAfter(report.seconds);
        if (report.full) this.#nextFull.set(family, timers.now() + rest);
        observer.synced(report);
      } else {
        observer.unchanged(family.family, family.takeTriggers());
      }
      // What came meanwhile may be not in this sync but in the next.
      if (this.#queued.has(family)) observer.queued(family.family);
      return isDue;
    } catch (error) {
      const seconds = (timers.now() - started) / 1000;
      observer.syncFailed(family.family, error, { full, seconds });
      throw error;
    }
  }

  /** Hands what changed to all families; one at a time, for both ask for it. */
  #drain(): Promise<void> {
    this.#draining ??= this.#drainOnce().finally(() => {
      this.#draining = undefined;
    });
    return this.#draining;
  }

  async #drainOnce(): Promise<void> {
    const { table, families, observer, nodeIp } = this.#options;
    const nodeIps = [...(nodeIp === undefined ? [] : [nodeIp]), ...(table.node?.addresses ?? [])];
    for (const family of families) {
      const own = (list: readonly string[]) =>
        list.filter((address) => familyOf(address) === family.family);
      const addresses = own(this.#addresses ?? []);
      const primary =
        nodeIps.length > 0
          ? own(nodeIps).slice(0, 1)
          : addresses.filter((address) => !isLoopback(address));
      const facts = { addresses, primary };
      if (family.setNodeFacts(facts)) observer.nodeFacts(family.family, facts);
    }
    while (table.hasChanges) {
      const { routes, refused, refusals, health, triggers } = table.takeChanges(SERVICES_PER_TURN);
      for (const family of families) {
        const own = <T extends { family: IpFamily }>(list: readonly T[]) =>
          list.filter((route) => route.family === family.family);
        family.setRefused(refused);
        family.update(own(routes.upserts), own(routes.removals), routes.before);
        family.updateHealth(own(health));
        family.addTriggers(own(triggers).map(({ time }) => time));
      }
      observer.refusals(refusals);
      if (table.hasChanges) await nextTurn();
    }
  }

  /** Each family by itself: where a command hangs, a look takes minutes. */
  #scheduleCheck(family: FamilyProxier, runner: Runner): void {
    if (this.#stopped) return;
    const timer = this.#options.timers.set(() => {
      const check = this.#checkFamily(family, runner);
      this.#checking.set(
        family,
        check.then(() => this.#scheduleCheck(family, runner)),
      );
    }, this.#options.syncPeriod);
    this.#checkTimers.set(family, timer);
  }

  /** Looks whether the rules still stand, and whether a full comparison is due. */
  async #checkFamily(family: FamilyProxier, runner: Runner): Promise<void> {
    const { observer, timers } = this.#options;
    const nextFull = this.#nextFull.get(family);
    if (nextFull === undefined || this.#stopped) return;
    try {
      const isDue = timers.now() >= nextFull;
      const lost = isDue ? undefined : await family.loss();
      if (!isDue) observer.checked(family.family);
      if (!isDue && lost === undefined) return;
      family.requireFull();
      if (lost === undefined) {
        // A comparison that is due is not queued: as far as is known, nothing waits for it.
        runner.request();
        return;
      }
      observer.rulesLost(family.family, lost);
      this.#request(family);
    } catch (error) {
      observer.checkFailed(family.family, error);
    }
  }
}

/** Milliseconds until the next comparison, after one that took so many seconds. */
function restAfter(seconds: number): number {
  return Math.min(seconds * 1000 * COMPARISON_SHARE, FULL_SYNC_PERIOD);
}
