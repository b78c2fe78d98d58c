/**
 * Watches nf_tables for changes that other programs make to the agent's tables, such as `nft flush ruleset`.
 * One netlink socket receives all notifications; each owner gets the changes of its own tables.
 */
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import { addressFamily } from '../netlink/core/address.ts';
import { foreignTransactions } from '../netlink/nftables/generation.ts';
import { openPortIds } from '../netlink/nftables/tables.ts';
import type { NftNotification } from '../netlink/nftables/types.ts';
import { watchNftables } from '../netlink/nftables/watch.ts';
import type { Timers } from '../sync/timers.ts';
import { nftFamily } from './rule.ts';

/** A part of the agent that owns nf_tables tables, with the same names in all of its families. */
export interface TableOwner {
  readonly families: readonly IpFamily[];
  readonly tables: readonly string[];
  /** Another program changed a table of this family. @param what description of the change, for the log. */
  onExternalChange(family: IpFamily, what: string): void;
  /** The watch has started; from now on `onExternalChange` reports every change of this family, unless notifications are lost. */
  onWatchStarted(family: IpFamily): void;
  /**
   * Other programs may have changed tables of this family without a notification: before the watch started, or when
   * notifications were lost. The owner must compare its tables with the kernel, or write them again.
   */
  onMissedChanges(family: IpFamily): void;
  /** The watch cannot start; `onExternalChange` is never called. */
  onWatchFailed(error: unknown): void;
}

/**
 * Reports that the first load of a family has ended, also when it failed. Later calls have no effect.
 * @param after work to wait for as well, such as removing the table of another proxy.
 */
export type ReportLoaded = (family: IpFamily, after?: Promise<void>) => void;

/** Milliseconds to wait for other loads after the first load has ended. */
const MAX_LOAD_WAIT_MS = 10_000;

/**
 * Starts the watch for external changes when every registered owner has loaded its tables. While a
 * socket listens, the kernel takes twice as long for a load, and queues 4 KiB for each element, chain
 * and rule. Ten seconds after the first load, the watch starts even if another load has not ended.
 * If another program has committed a transaction since the first owner was registered, owners
 * compare their tables once.
 */
export class NftMonitor {
  readonly #timers: Timers;
  readonly #watch: typeof watchNftables;
  readonly #foreignTransactions: () => Promise<number | undefined>;
  readonly #owners: TableOwner[] = [];
  readonly #pendingLoads = new Set<Promise<void>>();
  /** Resolves to whether other programs may have changed tables before the watch started. */
  readonly #watchStarted = Promise.withResolvers<boolean>();
  /** `foreignTransactions` before the first load. */
  #before: Promise<number | undefined> | undefined;
  /** Timer that starts the watch; set when the first load has ended. */
  #deadline: unknown;
  #socket: ReturnType<typeof watchNftables> | undefined;
  /** What the transaction that is being read changed, by table. */
  readonly #changes = new Map<string, TableChange>();
  #isStartedOrClosed = false;
  #isClosed = false;

  /**
   * @param watch opens the netlink socket; replaced in tests.
   * @param count as `foreignTransactions`; replaced in tests.
   */
  constructor(timers: Timers, watch = watchNftables, count = foreignTransactions) {
    this.#timers = timers;
    this.#watch = watch;
    // Without a count, changes may have been missed.
    this.#foreignTransactions = () => count().catch(() => undefined);
  }

  /** Call it before the owner reads or writes its tables. */
  register(owner: TableOwner): ReportLoaded {
    this.#owners.push(owner);
    this.#before ??= this.#foreignTransactions();
    this.#watchStarted.promise.catch((error: unknown) => owner.onWatchFailed(error));
    const loads = new Map(owner.families.map((each) => [each, Promise.withResolvers<void>()]));
    for (const { promise } of loads.values()) this.waitForLoad(promise);
    return (family, after) => {
      const load = loads.get(family);
      if (!loads.delete(family)) return;
      this.#deadline ??= this.#timers.set(() => void this.#startWatch(), MAX_LOAD_WAIT_MS);
      load?.resolve(after);
      this.#watchStarted.promise.then(
        (hasMissedChanges) => {
          owner.onWatchStarted(family);
          if (hasMissedChanges) owner.onMissedChanges(family);
        },
        () => {}, // `onWatchFailed` was called.
      );
    };
  }

  /** Delays the watch for another load, such as of iptables-nft rules, which are nf_tables rules too. */
  waitForLoad(load: Promise<void>): void {
    this.#pendingLoads.add(load);
    void load.then(() => {
      this.#pendingLoads.delete(load);
      if (this.#pendingLoads.size === 0 && this.#deadline !== undefined) void this.#startWatch();
    });
  }

  /**
   * Stops all reports. Call it before closing the sockets of tables: afterwards their changes would count as external
   * changes.
   */
  async close(): Promise<void> {
    this.#isStartedOrClosed = true;
    this.#isClosed = true;
    this.#timers.clear(this.#deadline);
    await this.#socket?.close();
  }

  async #startWatch(): Promise<void> {
    if (this.#isStartedOrClosed) return;
    this.#isStartedOrClosed = true;
    this.#timers.clear(this.#deadline);
    try {
      this.#socket = this.#watch({
        filteredPortIds: [...openPortIds],
        isOwnPortId: (port) => openPortIds.has(port),
        onChange: (change) => this.#collect(change),
        onOverrun: () => {
          this.#notifyOwners();
          for (const owner of this.#owners)
            for (const family of owner.families) owner.onMissedChanges(family);
        },
      });
    } catch (error) {
      this.#watchStarted.reject(error);
      return;
    }
    // Counted while the watch is open, so that each change is notified or counted.
    const now = await this.#foreignTransactions();
    const hasMissedChanges = now === undefined || now !== (await this.#before);
    if (!this.#isClosed) this.#watchStarted.resolve(hasMissedChanges);
  }

  /** The kernel reports the rules of a deleted table first, then its chains, then the table. */
  #collect(change: NftNotification): void {
    const { kind, family: number, table } = change;
    if (kind === 'generation') this.#notifyOwners();
    const family = IP_FAMILIES.find((each) => addressFamily(each) === number);
    if (table === undefined || family === undefined) return;
    if (!this.#owners.some(({ tables }) => tables.includes(table))) return;
    const key = `${family} ${table}`;
    const extent = extentOf(change);
    if ((this.#changes.get(key)?.extent ?? -1) >= extent) return;
    this.#changes.set(key, { family, table, extent, what: changeText(change, family, table) });
  }

  #notifyOwners(): void {
    const changes = [...this.#changes.values()];
    this.#changes.clear();
    for (const { family, table, what } of changes) {
      for (const owner of this.#owners) {
        if (!owner.tables.includes(table) || !owner.families.includes(family)) continue;
        owner.onExternalChange(family, what);
      }
    }
  }
}

/** The most extensive change of a table in one transaction. */
interface TableChange {
  readonly family: IpFamily;
  readonly table: string;
  readonly extent: number;
  readonly what: string;
}

/** A deleted table or chain includes everything in it. */
function extentOf({ kind, isNew }: NftNotification): number {
  if (isNew) return 0;
  return kind === 'table' ? 2 : kind === 'chain' ? 1 : 0;
}

function changeText(change: NftNotification, family: IpFamily, table: string): string {
  const { kind, name, isNew } = change;
  const inTable = `table ${nftFamily(family)} ${table}`;
  if (kind === 'table') return `${inTable} was ${isNew ? 'changed' : 'deleted'}`;
  if (kind === 'chain' && !isNew) return `chain ${name} of ${inTable} was deleted`;
  return `${nameOf(change)} ${isNew ? 'added' : 'deleted'} in ${inTable}`;
}

/** `rule of chain services`, `element of cluster-ips`, `chain services`. */
function nameOf({ kind, name }: NftNotification): string {
  if (name === undefined) return kind;
  if (kind === 'rule') return `rule of chain ${name}`;
  return kind === 'element' ? `element of ${name}` : `${kind} ${name}`;
}
