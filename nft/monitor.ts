/**
 * What others do to tables of this process, such as `nft flush ruleset`: one socket hears of all changes
 * of nf_tables, and tells each part of the agent of those in its tables.
 */
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import { addressFamily } from '../netlink/core/address.ts';
import { openPortIds } from '../netlink/nftables/tables.ts';
import type { NftNotification } from '../netlink/nftables/types.ts';
import { watchNftables } from '../netlink/nftables/watch.ts';
import type { Timers } from '../sync/timers.ts';
import { nftProcessIds } from './command.ts';

/** A part of the agent that has tables of its own, of the same names in all of its families. */
export interface TableOwner {
  readonly families: readonly IpFamily[];
  readonly tables: readonly string[];
  /** Somebody else changed a table of this family. @param what in words for the log. */
  onExternalChange(family: IpFamily, what: string): void;
  /** The family has loaded, and all that others do from now on is told. */
  onWatchStarted(family: IpFamily): void;
  /** Nothing will be told. */
  onWatchFailed(error: unknown): void;
}

/**
 * Says that a family of an owner has loaded, or failed to; what counts is the first time.
 * @param after what else is to be done first, such as the removal of another's table.
 */
export type ReportLoaded = (family: IpFamily, after?: Promise<void>) => void;

/** How long it waits, after the first family has loaded, for whatever else loads. */
const MAX_LOAD_WAIT_MS = 10_000;

/**
 * Listens when all that was registered has loaded: a load takes the kernel twice as long while somebody
 * listens, and for each element, chain and rule it keeps 4 KiB. But not never, if some of it fails.
 */
export class NftMonitor {
  readonly #timers: Timers;
  readonly #watch: typeof watchNftables;
  readonly #owners: TableOwner[] = [];
  readonly #pendingLoads = new Set<Promise<void>>();
  readonly #watchStarted = Promise.withResolvers<void>();
  /** Set when the first family has loaded. */
  #deadline: unknown;
  #socket: ReturnType<typeof watchNftables> | undefined;
  #isStartedOrClosed = false;

  /** @param watch opens the socket; for tests. */
  constructor(timers: Timers, watch = watchNftables) {
    this.#timers = timers;
    this.#watch = watch;
  }

  register(owner: TableOwner): ReportLoaded {
    this.#owners.push(owner);
    this.#watchStarted.promise.catch((error: unknown) => owner.onWatchFailed(error));
    const loads = new Map(owner.families.map((each) => [each, Promise.withResolvers<void>()]));
    for (const { promise } of loads.values()) this.waitForLoad(promise);
    return (family, after) => {
      const load = loads.get(family);
      if (!loads.delete(family)) return;
      this.#deadline ??= this.#timers.set(() => this.#startWatch(), MAX_LOAD_WAIT_MS);
      load?.resolve(after);
      this.#watchStarted.promise.then(
        () => owner.onWatchStarted(family),
        () => {}, // `deaf` was told.
      );
    };
  }

  /** Something else that loads: of iptables, say, whose rules may be rules of nf_tables. */
  waitForLoad(load: Promise<void>): void {
    this.#pendingLoads.add(load);
    void load.then(() => {
      this.#pendingLoads.delete(load);
      if (this.#pendingLoads.size === 0 && this.#deadline !== undefined) this.#startWatch();
    });
  }

  /** Nothing is told any more. To be called before the sockets of tables are closed. */
  async close(): Promise<void> {
    this.#isStartedOrClosed = true;
    this.#timers.clear(this.#deadline);
    await this.#socket?.close();
  }

  #startWatch(): void {
    if (this.#isStartedOrClosed) return;
    this.#isStartedOrClosed = true;
    this.#timers.clear(this.#deadline);
    try {
      this.#socket = this.#watch({
        filteredPortIds: [...openPortIds],
        isOwnPortId: (port) => nftProcessIds.has(port) || openPortIds.has(port),
        onChange: (change) => this.#notifyOwners(change),
        onOverrun: () => {
          for (const owner of this.#owners) {
            for (const family of owner.families)
              owner.onExternalChange(family, 'some notifications were lost');
          }
        },
      });
      this.#watchStarted.resolve();
    } catch (error) {
      this.#watchStarted.reject(error);
    }
  }

  #notifyOwners({ family: number, table, kind, isNew }: NftNotification): void {
    if (table === undefined) return;
    const family = IP_FAMILIES.find((each) => addressFamily(each) === number);
    if (family === undefined) return;
    for (const owner of this.#owners) {
      if (!owner.tables.includes(table) || !owner.families.includes(family)) continue;
      owner.onExternalChange(family, `${kind} ${isNew ? 'added' : 'deleted'} in table ${table}`);
    }
  }
}
