/** Remembers the latest changes of the kernel, for the status API. Memory is bounded. */
import type { IpFamily, ObjectKey } from '../api/objects.ts';
import type { SyncReport } from '../proxier/family-proxier.ts';
import type { Change, ChangeKind } from './api/activity.ts';

/** Number of changes to remember. */
const MAX_CHANGES = 500;
/** Number of Services to name for one change. */
const MAX_SERVICES = 20;

/** See `Change` of the API. Times are milliseconds since 1970. */
export interface LoggedChange {
  readonly id: number;
  readonly at: number;
  readonly kind: ChangeKind;
  readonly rules: Change['rules'];
  readonly family: IpFamily;
  readonly full: boolean;
  readonly seconds: number | undefined;
  readonly queuedSeconds: number | undefined;
  readonly written: number;
  readonly deletedFlows: number;
  readonly services: readonly ObjectKey[];
  readonly serviceCount: number;
  readonly message: string;
  readonly count: number;
  readonly undoneAt: number | undefined;
}

const NO_SYNC = {
  rules: 'Services',
  full: false,
  seconds: undefined,
  queuedSeconds: undefined,
  written: 0,
  deletedFlows: 0,
  services: [],
  serviceCount: 0,
  message: '',
  count: 1,
  undoneAt: undefined,
} as const;

export class ChangeLog {
  #changes: LoggedChange[] = [];
  #lastId = 0;
  /** Families with a sync since the start. Earlier rules are from another agent, so the first sync repairs nothing. */
  readonly #synced = new Set<IpFamily>();

  /** The changes, the oldest first. */
  get changes(): readonly LoggedChange[] {
    return this.#changes;
  }

  /**
   * Adds a sync that succeeded, if it wrote something.
   * @param waitingSince when the first change was queued; undefined for a periodic sync.
   */
  synced(report: SyncReport, waitingSince: number | undefined, at: number): void {
    const { family, full, changed, seconds, written, deletedFlows, services } = report;
    const isFirst = !this.#synced.has(family);
    this.#synced.add(family);
    const undone = full ? this.#undoExternal(family, 'Services', at) : undefined;
    if (written === 0 && deletedFlows === 0) return;
    const isRepair = full && !changed && !isFirst && written > 0;
    this.#add({
      ...NO_SYNC,
      at,
      kind: isRepair ? 'repair' : 'sync',
      family,
      full,
      seconds,
      queuedSeconds: waitingSince === undefined ? undefined : (at - waitingSince) / 1000,
      written,
      deletedFlows,
      services: [...services].slice(0, MAX_SERVICES),
      serviceCount: services.size,
      message: isRepair ? (undone?.message ?? '') : '',
    });
  }

  failed(
    family: IpFamily,
    message: string,
    { full, seconds }: Pick<SyncReport, 'full' | 'seconds'>,
    at: number,
  ): void {
    this.#repeat({ ...NO_SYNC, at, kind: 'failure', family, full, seconds, message });
  }

  /** Another program changed objects of the agent. */
  drifted(
    family: IpFamily,
    message: string,
    at: number,
    rules: Change['rules'] = 'Services',
  ): void {
    this.#repeat({ ...NO_SYNC, at, kind: 'external', rules, family, message });
  }

  /** All rules of network policy were written. Adds a repair if that undid an external change. */
  policiesRestored(family: IpFamily, seconds: number, at: number): void {
    const undone = this.#undoExternal(family, 'policies', at);
    if (undone === undefined) return;
    const { message } = undone;
    const repair = { kind: 'repair', rules: 'policies', full: true } as const;
    this.#add({ ...NO_SYNC, ...repair, at, family, seconds, message });
  }

  /** Adds a change, or counts it if it equals the last change of the family. */
  #repeat(change: Omit<LoggedChange, 'id'>): void {
    const index = this.#changes.findLastIndex(
      ({ family, rules }) => family === change.family && rules === change.rules,
    );
    const last = this.#changes[index];
    const isSame =
      last?.kind === change.kind &&
      last.message === change.message &&
      last.undoneAt === change.undoneAt;
    if (isSame) this.#changes.splice(index, 1);
    this.#add({ ...change, count: isSame ? last.count + 1 : 1 });
  }

  #add(change: Omit<LoggedChange, 'id'>): void {
    this.#lastId += 1;
    this.#changes.push({ ...change, id: this.#lastId });
    if (this.#changes.length > MAX_CHANGES) this.#changes.shift();
  }

  /** @returns the latest external change that the sync undid. */
  #undoExternal(family: IpFamily, rules: Change['rules'], at: number): LoggedChange | undefined {
    const isOpen = (change: LoggedChange) =>
      change.kind === 'external' &&
      change.rules === rules &&
      change.family === family &&
      change.undoneAt === undefined;
    const latest = this.#changes.findLast(isOpen);
    this.#changes = this.#changes.map((change) =>
      isOpen(change) ? { ...change, undoneAt: at } : change,
    );
    return latest;
  }
}
