/** proxier/ brings what follows from the objects into the kernel: RouteTable, Proxier, and a backend for each family. */
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
  nodeAddresses(family: IpFamily, facts: NodeAddresses): void;
  /** There may be something to write; told of once or several times until it is. */
  queued(family: IpFamily): void;
  /**
   * What was queued is nothing for this family: the kernel has what it should.
   * @param triggerTimes as in `SyncReport`.
   */
  unchanged(family: IpFamily, triggerTimes: readonly number[]): void;
  synced(report: SyncReport): void;
  syncFailed(family: IpFamily, error: unknown, attempt: Pick<SyncReport, 'full' | 'seconds'>): void;
  /** Somebody else changed our rules; `what` says which. */
  driftDetected(family: IpFamily, what: string): void;
  /** It could not be told whether the rules still stand. */
  checkFailed(family: IpFamily, error: unknown): void;
  /** The check of the rules ran, whatever it found. */
  checked(family: IpFamily): void;
}

const BACKOFF = { first: 500, max: 30_000 };
/** Services resolved before the event loop gets a turn. */
const SERVICES_PER_TURN = 50;

/**
 * The loop from changed objects to the kernel: collects changes by Service, resolves them to
 * Routes, and lets each family sync on its own, so that one that fails does not hold up the other.
 */
export class Proxier {
  readonly #options: ProxierOptions;
  readonly #loops: ReadonlyMap<FamilyProxier, Loop>;
  /** Asked for a sync since their last one began. */
  readonly #queued = new Set<FamilyProxier>();
  readonly #propagations = new SerialQueue();
  #addresses: readonly string[] | undefined;

  constructor(options: ProxierOptions) {
    this.#options = options;
    this.#loops = new Map(options.families.map((family) => [family, this.#loop(family)]));
  }

  /** There may be something to do. */
  request(): void {
    this.#request();
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
    this.#request({ urgent: true });
  }

  /** Ends after the syncs that run now; the kernel keeps its rules. */
  async stop(): Promise<void> {
    await Promise.all([...this.#loops.values()].map((loop) => loop.stop()));
    await Promise.all([...this.#loops.keys()].map(({ backend }) => backend.close()));
  }

  /** Nothing is programmed before everything is known that rules follow from. */
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
        // A full sync that is due is not queued: as far as is known, nothing waits for it.
        onDrift: (what) => {
          observer.driftDetected(name, what);
          this.#queue(family);
        },
        onError: (error) => observer.checkFailed(name, error),
      },
    });
    backend.onDrift?.(() => void loop.checkDrift());
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
      // One at a time, for each family asks for it.
      await this.#propagations.run(() => this.#propagateChanges());
      let took: number | undefined;
      if (full || family.hasChanges) {
        const report = await family.sync(full);
        took = report.seconds * 1000;
        observer.synced(report);
      } else {
        observer.unchanged(family.family, family.takeTriggers());
      }
      // What came meanwhile may be not in this sync but in the next.
      if (this.#queued.has(family)) observer.queued(family.family);
      return took;
    } catch (error) {
      const seconds = (timers.now() - started) / 1000;
      observer.syncFailed(family.family, error, { full, seconds });
      throw error;
    }
  }

  /** Hands what changed to all families. */
  async #propagateChanges(): Promise<void> {
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
      if (family.setNodeAddresses(facts)) observer.nodeAddresses(family.family, facts);
    }
    while (table.hasChanges) {
      const { routes, refused, refusals, health, triggers } = table.takeChanges(SERVICES_PER_TURN);
      for (const family of families) {
        const own = <T extends { family: IpFamily }>(list: readonly T[]) =>
          list.filter((route) => route.family === family.family);
        family.setRefusedServices(refused);
        family.update(own(routes.upserts), own(routes.removals), routes.before);
        family.updateHealth(own(health));
        family.addTriggers(own(triggers).map(({ time }) => time));
      }
      observer.refusals(refusals);
      if (table.hasChanges) await nextTurn();
    }
  }
}
