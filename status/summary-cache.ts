/** Keeps the rows of `GET /api/v1/services` for some seconds, so that a change of one Service costs one row. */
import type { ObjectKey } from '../api/objects.ts';
import type { NodeTopology } from '../endpoints/select.ts';
import type { InspectedService, RouteTable } from '../proxier/route-table.ts';
import type { Timers } from '../sync/timers.ts';
import type { ServiceSummary } from './api/services.ts';
import { serviceSummary } from './views/services.ts';

/** Milliseconds after the last request. 10,000 rows take about 5 MB. */
const KEPT_FOR = 10_000;

/** Does not keep the process running. */
const IDLE_TIMERS: Pick<Timers, 'set' | 'clear'> = {
  set: (callback, milliseconds) => setTimeout(callback, milliseconds).unref(),
  clear: (handle) => clearTimeout(handle as NodeJS.Timeout | undefined),
};

interface Entry {
  readonly inspected: InspectedService;
  readonly summary: ServiceSummary;
}

export class SummaryCache {
  readonly #timers: Pick<Timers, 'set' | 'clear'>;
  readonly #entries = new Map<ObjectKey, Entry>();
  #timer: unknown;

  constructor(timers = IDLE_TIMERS) {
    this.#timers = timers;
  }

  /** Number of rows in memory. */
  get size(): number {
    return this.#entries.size;
  }

  summary(inspected: InspectedService, node: NodeTopology): ServiceSummary {
    const { key } = inspected.service;
    const known = this.#entries.get(key);
    if (known !== undefined && isSame(known.inspected, inspected)) return known.summary;
    const summary = serviceSummary(inspected, node);
    this.#entries.set(key, { inspected, summary });
    return summary;
  }

  /** Drops rows of deleted Services. Call it at the end of each request. */
  prune(table: Pick<RouteTable, 'inspect' | 'serviceCount'>): void {
    if (this.#entries.size > table.serviceCount) {
      for (const key of this.#entries.keys()) {
        if (table.inspect(key) === undefined) this.#entries.delete(key);
      }
    }
    this.#timers.clear(this.#timer);
    this.#timer = this.#timers.set(() => this.#entries.clear(), KEPT_FOR);
  }
}

/** Whether the parts are the same objects: the table replaces what changes. The node's name never changes. */
function isSame(before: InspectedService, now: InspectedService): boolean {
  return (
    before.service === now.service &&
    before.served === now.served &&
    isSameList(before.slices, now.slices) &&
    isSameList(before.routes, now.routes) &&
    isSameList(before.refusals, now.refusals)
  );
}

function isSameList(before: readonly unknown[], now: readonly unknown[]): boolean {
  return before === now || (before.length === 0 && now.length === 0);
}
