/**
 * What others do to tables of this process, such as `nft flush ruleset`: one socket hears of all changes
 * of nf_tables, and tells each part of the agent of those in its tables.
 */
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import { addressFamily } from '../netlink/core/address.ts';
import { openPorts } from '../netlink/nftables/tables.ts';
import type { NftNotification } from '../netlink/nftables/types.ts';
import { watchNftables } from '../netlink/nftables/watch.ts';
import type { Timers } from '../sync/timers.ts';
import { nftProcessIds } from './command.ts';

/** A part of the agent that has tables of its own, of the same names in all of its families. */
export interface TableOwner {
  readonly families: readonly IpFamily[];
  readonly tables: readonly string[];
  /** Somebody else changed a table of this family. @param what in words for the log. */
  changed(family: IpFamily, what: string): void;
  /** The family has loaded, and all that others do from now on is told. */
  listening(family: IpFamily): void;
  /** Nothing will be told. */
  deaf(error: unknown): void;
}

/**
 * Says that a family of an owner has loaded, or failed to; what counts is the first time.
 * @param after what else is to be done first, such as the removal of another's table.
 */
export type Loaded = (family: IpFamily, after?: Promise<void>) => void;

/** How long it waits, after the first family has loaded, for whatever else loads. */
const LOADING_MS = 10_000;

/**
 * Listens when all that was registered has loaded: a load takes the kernel twice as long while somebody
 * listens, and for each element, chain and rule it keeps 4 KiB. But not never, if some of it fails.
 */
export class NftMonitor {
  readonly #timers: Timers;
  readonly #watch: typeof watchNftables;
  readonly #owners: TableOwner[] = [];
  readonly #loading = new Set<Promise<void>>();
  readonly #listening = Promise.withResolvers<void>();
  /** Set when the first family has loaded. */
  #deadline: unknown;
  #socket: ReturnType<typeof watchNftables> | undefined;
  #isOver = false;

  /** @param watch opens the socket; for tests. */
  constructor(timers: Timers, watch = watchNftables) {
    this.#timers = timers;
    this.#watch = watch;
  }

  register(owner: TableOwner): Loaded {
    this.#owners.push(owner);
    this.#listening.promise.catch((error: unknown) => owner.deaf(error));
    const loads = new Map(owner.families.map((each) => [each, Promise.withResolvers<void>()]));
    for (const { promise } of loads.values()) this.waitFor(promise);
    return (family, after) => {
      const load = loads.get(family);
      if (!loads.delete(family)) return;
      this.#deadline ??= this.#timers.set(() => this.#listen(), LOADING_MS);
      load?.resolve(after);
      this.#listening.promise.then(
        () => owner.listening(family),
        () => {}, // `deaf` was told.
      );
    };
  }

  /** Something else that loads: of iptables, say, whose rules may be rules of nf_tables. */
  waitFor(load: Promise<void>): void {
    this.#loading.add(load);
    void load.then(() => {
      this.#loading.delete(load);
      if (this.#loading.size === 0 && this.#deadline !== undefined) this.#listen();
    });
  }

  /** Nothing is told any more. To be called before the sockets of tables are closed. */
  async close(): Promise<void> {
    this.#isOver = true;
    this.#timers.clear(this.#deadline);
    await this.#socket?.close();
  }

  #listen(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#timers.clear(this.#deadline);
    try {
      this.#socket = this.#watch({
        silencedPorts: [...openPorts],
        isOwn: (port) => nftProcessIds.has(port) || openPorts.has(port),
        onChange: (change) => this.#tell(change),
        onOverrun: () => {
          for (const owner of this.#owners) {
            for (const family of owner.families)
              owner.changed(family, 'some notifications were lost');
          }
        },
      });
      this.#listening.resolve();
    } catch (error) {
      this.#listening.reject(error);
    }
  }

  #tell({ family: number, table, kind, isNew }: NftNotification): void {
    if (table === undefined) return;
    const family = IP_FAMILIES.find((each) => addressFamily(each) === number);
    if (family === undefined) return;
    for (const owner of this.#owners) {
      if (!owner.tables.includes(table) || !owner.families.includes(family)) continue;
      owner.changed(family, `${kind} ${isNew ? 'added' : 'deleted'} in table ${table}`);
    }
  }
}
