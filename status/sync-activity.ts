/** Remembers what the syncs of each family did, for the status API. Memory is bounded. */
import type { IpFamily } from '../api/objects.ts';
import { failureText } from '../process/failure-text.ts';
import type { SyncReport } from '../proxier/family-proxier.ts';
import type { ProxierObserver } from '../proxier/proxier.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import { ChangeLog, type LoggedChange } from './change-log.ts';

/** A failure or a drift, with the number of them. */
interface Repeated {
  /** Milliseconds since 1970. */
  readonly at: number;
  readonly message: string;
  readonly count: number;
}

/** What is known about the syncs of one family. Times are milliseconds since 1970. */
export interface FamilyActivity {
  readonly lastSync: FinishedSync | undefined;
  readonly lastFullSync: FinishedSync | undefined;
  readonly waitingSince: number | undefined;
  /** undefined once a sync succeeds. `count` counts consecutive failures. */
  readonly failure: Repeated | undefined;
  /** `count` counts all changes by other programs since the start. */
  readonly drift: Repeated | undefined;
}

/** A sync that succeeded. */
interface FinishedSync extends Pick<SyncReport, 'seconds' | 'written'> {
  /** End of the sync, in milliseconds since 1970. */
  readonly at: number;
}

const NOTHING: FamilyActivity = {
  lastSync: undefined,
  lastFullSync: undefined,
  waitingSince: undefined,
  failure: undefined,
  drift: undefined,
};

export class SyncActivity {
  readonly #now: () => number;
  readonly #families = new Map<IpFamily, FamilyActivity>();
  readonly #log = new ChangeLog();
  #longest = 0;
  /** Replaced, never changed, so that a reader can cache what it derives. */
  #nodeAddresses: ReadonlyMap<IpFamily, NodeAddresses> = new Map();
  /** Number of syncs that ended, successful or not. */
  #ended = 0;

  /** @param now milliseconds since 1970. */
  constructor(now: () => number = Date.now) {
    this.#now = now;
  }

  family(family: IpFamily): FamilyActivity {
    return this.#families.get(family) ?? NOTHING;
  }

  /** The latest changes of the kernel, the oldest first. */
  get changes(): readonly LoggedChange[] {
    return this.#log.changes;
  }

  /** Seconds of the longest sync since the last call; 0 without a sync. */
  takeLongestSync(): number {
    const longest = this.#longest;
    this.#longest = 0;
    return longest;
  }

  /** Number of syncs that ended since the start; unchanged while none ended. */
  get ended(): number {
    return this.#ended;
  }

  /** The addresses of this node that the last sync of each family used. */
  get nodeAddresses(): ReadonlyMap<IpFamily, NodeAddresses> {
    return this.#nodeAddresses;
  }

  /** Another program changed the rules of network policy. */
  policiesDrifted(family: IpFamily, change: string): void {
    this.#log.drifted(family, change, this.#now(), 'policies');
  }

  /** All rules of network policy were written. */
  policiesRestored(family: IpFamily, seconds: number): void {
    this.#log.policiesRestored(family, seconds, this.#now());
  }

  /** Wraps an observer. Forwards all calls. */
  observing(observer: ProxierObserver): ProxierObserver {
    return {
      ...observer,
      nodeAddresses: (family, addresses) => {
        observer.nodeAddresses(family, addresses);
        this.#nodeAddresses = new Map([...this.#nodeAddresses, [family, addresses]]);
      },
      queued: (family) => {
        observer.queued(family);
        this.#set(family, { waitingSince: this.family(family).waitingSince ?? this.#now() });
      },
      unchanged: (family, triggerTimes) => {
        observer.unchanged(family, triggerTimes);
        this.#set(family, { waitingSince: undefined });
      },
      synced: (report) => {
        observer.synced(report);
        this.#synced(report);
      },
      syncFailed: (family, error, attempt) => {
        observer.syncFailed(family, error, attempt);
        const message = failureText(error);
        this.#count(attempt);
        this.#log.failed(family, message, attempt, this.#now());
        this.#set(family, { failure: this.#repeat(this.family(family).failure, message) });
      },
      driftDetected: (family, change) => {
        observer.driftDetected(family, change);
        this.#log.drifted(family, change, this.#now());
        this.#set(family, { drift: this.#repeat(this.family(family).drift, change) });
      },
    };
  }

  #synced(report: SyncReport): void {
    const { family, full, seconds, written } = report;
    const at = this.#now();
    const lastSync = { at, seconds, written };
    const { lastFullSync, waitingSince } = this.family(family);
    this.#count(report);
    this.#log.synced(report, waitingSince, at);
    this.#set(family, {
      lastSync,
      lastFullSync: full ? lastSync : lastFullSync,
      waitingSince: undefined,
      failure: undefined,
    });
  }

  #count({ seconds }: Pick<SyncReport, 'seconds'>): void {
    this.#ended += 1;
    this.#longest = Math.max(this.#longest, seconds);
  }

  #repeat(before: Repeated | undefined, message: string): Repeated {
    return { at: this.#now(), message, count: (before?.count ?? 0) + 1 };
  }

  #set(family: IpFamily, changes: Partial<FamilyActivity>): void {
    this.#families.set(family, { ...this.family(family), ...changes });
  }
}
