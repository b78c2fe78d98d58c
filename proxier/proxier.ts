/** The sync loop: passes changed Routes from the RouteTable to the backend of each IP family, and schedules syncs. */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { familyOf, isLoopback } from '../api/addresses.ts';
import { compareText } from '../api/collections.ts';
import type { IpFamily } from '../api/objects.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import { Loop } from '../sync/loop.ts';
import { SerialQueue } from '../sync/serial-queue.ts';
import type { Timers } from '../sync/timers.ts';
import type { FamilyProxier, SyncReport } from './family-proxier.ts';
import type { RefusalChanges, RouteTable } from './route-table.ts';

/** Options of the sync loop. */
export interface ProxierOptions {
  readonly table: RouteTable;
  readonly families: readonly FamilyProxier[];
  /** IP of this node (`--bind-address`); replaces the Node object's address of the same family. */
  readonly nodeIp?: string | undefined;
  /** The CIDRs of cluster IPs, of both families; none by default. */
  readonly serviceCidrs?: () => readonly string[];
  /** Rate limit: average milliseconds between two syncs of a family, see `LoopOptions.minPeriod`. */
  readonly minSyncPeriod: number;
  /** Milliseconds between two checks for drift. */
  readonly syncPeriod: number;
  readonly timers: Timers;
  readonly observer: ProxierObserver;
}

/** Receives the events of the proxier, for logs, metrics and health. */
export interface ProxierObserver {
  refusals(changes: RefusalChanges): void;
  /** The addresses of the node changed. */
  nodeAddresses(family: IpFamily, addresses: NodeAddresses): void;
  /** Changes for a family may be pending. May be called several times before `synced` or `unchanged`. */
  queued(family: IpFamily): void;
  /**
   * The queued changes do not concern this family; the kernel is up to date.
   * @param triggerTimes as in `SyncReport`.
   */
  unchanged(family: IpFamily, triggerTimes: readonly number[]): void;
  synced(report: SyncReport): void;
  syncFailed(family: IpFamily, error: unknown, attempt: Pick<SyncReport, 'full' | 'seconds'>): void;
  /** Another program changed the agent's rules. @param what description of the drift, for the log. */
  driftDetected(family: IpFamily, what: string): void;
  /** The check for drift failed. */
  checkFailed(family: IpFamily, error: unknown): void;
  /** The check for drift completed, with or without drift. */
  checked(family: IpFamily): void;
}

const BACKOFF = { first: 500, max: 30_000 };
/** Number of Services to resolve before yielding to the event loop. */
const SERVICES_PER_TURN = 50;
/**
 * Cost of the Services that one sync may change, unless one Service has more. A change of an ordinary
 * Service waits for one such sync, which takes about 20 ms. A large Service (`entryCost`) has more, and a sync of its own. At the
 * start, one sync writes everything.
 */
const COST_PER_SYNC = 1024;
/** Owners of ports that one sync may change of a Service, which takes about as long. */
const OWNERS_PER_SYNC = 256;
/** Minimum milliseconds between two syncs that change costly Services, if more wait than one sync may change. */
const MIN_COSTLY_PERIOD = 20;

/**
 * Runs the syncs: takes changed Routes from the RouteTable and syncs each IP family in a separate loop. A failing
 * family does not delay the other family.
 */
export class Proxier {
  readonly #options: ProxierOptions;
  readonly #loops: ReadonlyMap<FamilyProxier, Loop>;
  /** Families whose next sync was requested after their last sync began. */
  readonly #queued = new Set<FamilyProxier>();
  readonly #propagations = new SerialQueue();
  /** Runs when the next costly Services may be taken; undefined: they may be taken now. */
  #costlyTimer: unknown;
  #costlyPeriod = MIN_COSTLY_PERIOD;
  /** Families that got changes of costly Services since their last sync. */
  readonly #withCostly = new Set<FamilyProxier>();
  #addresses: readonly string[] | undefined;

  constructor(options: ProxierOptions) {
    this.#options = options;
    this.#loops = new Map(options.families.map((family) => [family, this.#loop(family)]));
  }

  /** Requests a sync of all families. */
  request(): void {
    this.#request();
  }

  /**
   * Sets all addresses of this node; nothing is written before they are known. Requests an urgent sync that does
   * not wait for the minimum period, because a Service may have to release a VIP that is now a node address.
   */
  setNodeAddresses(addresses: readonly string[]): void {
    // Several interfaces may have the same address.
    const unique = new Set(addresses);
    this.#addresses = [...unique].sort(compareText);
    this.#options.table.setNodeAddresses(unique);
    this.#request({ urgent: true });
  }

  /** Stops after the syncs in progress. The rules remain in the kernel. */
  async stop(): Promise<void> {
    await Promise.all([...this.#loops.values()].map((loop) => loop.stop()));
    // A sync that ended meanwhile may have set it.
    this.#options.timers.clear(this.#costlyTimer);
    await Promise.all([...this.#loops.keys()].map(({ backend }) => backend.close()));
  }

  /** Whether all objects and node addresses that rules depend on are known. */
  get #isReady(): boolean {
    return this.#options.table.isSynced && this.#addresses !== undefined;
  }

  #loop(family: FamilyProxier): Loop {
    const { observer, minSyncPeriod: minPeriod, syncPeriod: period, timers } = this.#options;
    const { backend, family: name } = family;
    const loop = new Loop({
      run: (full) => this.#sync(family, full),
      minPeriod,
      backoff: BACKOFF,
      timers,
      driftCheck: {
        period,
        findDrift: () => backend.findDrift(),
        watchesChanges: () => backend.watchesChanges === true,
        onChecked: () => observer.checked(name),
        // Drift counts as a queued change. A periodic full sync does not, because no known change waits for it.
        onDrift: (what) => {
          observer.driftDetected(name, what);
          this.#queue(family);
        },
        onError: (error) => observer.checkFailed(name, error),
      },
    });
    backend.onDrift?.(() => void loop.checkDrift());
    backend.onMissedChanges?.(() => loop.resync());
    return loop;
  }

  #request(options?: { urgent: boolean }): void {
    for (const [family, loop] of this.#loops) {
      loop.request(options);
      this.#queue(family);
    }
  }

  #queue(family: FamilyProxier): void {
    if (!this.#isReady) return;
    this.#queued.add(family);
    this.#options.observer.queued(family.family);
  }

  async #sync(family: FamilyProxier, full: boolean): Promise<number | undefined> {
    const { observer, timers } = this.#options;
    if (!this.#isReady) return undefined;
    this.#queued.delete(family);
    const started = timers.now();
    try {
      // Both families share these changes, so only one family may propagate them at a time.
      await this.#propagations.run(() => this.#propagateChanges(full));
      const hasCostly = this.#withCostly.delete(family);
      let durationMs: number | undefined;
      if (full || family.hasChanges) {
        const report = await family.sync(full);
        // Changes of costly Services have their own limit, and must not use up that of ordinary changes.
        durationMs = hasCostly ? 0 : report.seconds * 1000;
        if (hasCostly && !full) this.#costlyPeriod = costlyPeriod(report);
        observer.synced(report);
      } else {
        observer.unchanged(family.family, family.takeTriggers());
      }
      // Changes that arrived during this sync may have to wait for the next sync.
      if (this.#queued.has(family)) observer.queued(family.family);
      return durationMs;
    } catch (error) {
      const seconds = (timers.now() - started) / 1000;
      observer.syncFailed(family.family, error, { full, seconds });
      throw error;
    }
  }

  /**
   * Passes pending changes to the families: all of ordinary Services, and so many of costly ones that the
   * sync remains short. If more costly ones wait, ordinary changes have as much time before the next such sync.
   * @param all passes all.
   */
  async #propagateChanges(all: boolean): Promise<void> {
    const { table, families, observer, nodeIp, serviceCidrs } = this.#options;
    const nodeIps = [...(nodeIp === undefined ? [] : [nodeIp]), ...(table.node?.addresses ?? [])];
    for (const family of families) {
      const own = (list: readonly string[]) =>
        list.filter((address) => familyOf(address) === family.family);
      const addresses = own(this.#addresses ?? []);
      const primary =
        nodeIps.length > 0
          ? own(nodeIps).slice(0, 1)
          : addresses.filter((address) => !isLoopback(address));
      const nodeAddresses = { addresses, primary };
      if (family.setNodeAddresses(nodeAddresses))
        observer.nodeAddresses(family.family, nodeAddresses);
      if (serviceCidrs !== undefined) family.setServiceCidrs(own(serviceCidrs()));
    }
    // Changes that arrive meanwhile wait for the next sync, or many could put this one off for ever.
    let { ordinary, costly } = table.waiting;
    if (!all) costly = this.#costlyTimer === undefined ? 1 : 0;
    while (ordinary > 0 || (costly > 0 && table.waiting.costly > 0)) {
      // Ordinary Services first.
      const takesCostly = ordinary <= 0;
      const owners = all ? Infinity : OWNERS_PER_SYNC;
      const limits = takesCostly
        ? { services: 0, cost: COST_PER_SYNC, owners }
        : { services: Math.min(SERVICES_PER_TURN, ordinary), cost: 0, owners };
      if (takesCostly) costly -= 1;
      else ordinary -= limits.services;
      const { routes, refused, refusals, health, triggers } = table.takeChanges(limits);
      for (const family of families) {
        const own = <T extends { family: IpFamily }>(list: readonly T[]) =>
          list.filter((route) => route.family === family.family);
        family.setRefusedServices(refused);
        family.update(own(routes.upserts), own(routes.removals), routes.before);
        family.updateHealth(own(health));
        if (takesCostly) this.#withCostly.add(family);
        family.addTriggers(own(triggers).map(({ time }) => time));
      }
      observer.refusals(refusals);
      if (table.hasChanges) await nextTurn();
    }
    if (table.waiting.costly > 0 && this.#costlyTimer === undefined) {
      this.#costlyTimer = this.#options.timers.set(() => {
        this.#costlyTimer = undefined;
        this.#request();
      }, this.#costlyPeriod);
    }
  }
}

/** Twice the time of a sync that changed costly Services, so that such syncs take half of the time at most. */
function costlyPeriod({ seconds }: SyncReport): number {
  return Math.max(2 * seconds * 1000, MIN_COSTLY_PERIOD);
}
