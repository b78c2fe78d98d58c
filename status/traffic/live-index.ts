/** The ServiceIndex while a client looks: built on the first use, kept up to date, and dropped when unused. */

import type { RouteListener } from '../../proxier/route-table.ts';
import type { Route } from '../../services/route.ts';
import { BackgroundSlice } from '../../sync/precedence.ts';
import { callPeriodically, type Timers } from '../../sync/timers.ts';
import { ServiceIndex } from './service-index.ts';

/** Where Routes come from. */
export interface RouteSource {
  /** All Routes now. */
  routes(): Iterable<Route>;
  /** The Routes of a Service, `namespace/name`; none if there is no such Service. */
  ofService(service: string): readonly Route[];
  /** Reports later changes. @returns a function that ends the reports. */
  watch(listener: RouteListener): () => void;
}

/** Milliseconds without a user until the index is dropped, and between two checks. */
const IDLE_MS = 60_000;
const CHECK_MS = 10_000;

/** A ServiceIndex that exists only while it is used. */
export class LiveIndex {
  readonly #source: RouteSource;
  readonly #timers: Timers;
  #built: Promise<ServiceIndex> | undefined;
  #stop: (() => void) | undefined;
  #users = 0;
  #lastUse = 0;

  constructor(source: RouteSource, timers: Timers) {
    this.#source = source;
    this.#timers = timers;
  }

  /** Whether the index exists. */
  get isBuilt(): boolean {
    return this.#built !== undefined;
  }

  /** Returns the index, and builds it if necessary. It stays up to date until `release` is called. */
  async acquire(): Promise<ServiceIndex> {
    this.#users += 1;
    this.#built ??= this.#build();
    return await this.#built;
  }

  /** Ends a use that `acquire` began. The index is dropped after a minute without use. */
  release(): void {
    this.#users -= 1;
    this.#lastUse = this.#timers.now();
  }

  /** Drops the index at once. */
  close(): void {
    this.#stop?.();
    this.#stop = undefined;
    this.#built = undefined;
  }

  async #build(): Promise<ServiceIndex> {
    const index = new ServiceIndex();
    /** IDs of Routes that changed during the build. */
    let changed: Set<string> | undefined = new Set();
    const unwatch = this.#source.watch((before, after) => {
      const id = after?.id ?? before?.id;
      if (id !== undefined) changed?.add(id);
      index.replaceRoute(before, after);
    });
    const stopChecks = callPeriodically(this.#timers, CHECK_MS, () => {
      if (this.#users === 0 && this.#timers.now() - this.#lastUse >= IDLE_MS) this.close();
    });
    this.#stop = () => {
      unwatch();
      stopChecks();
    };
    const slice = new BackgroundSlice();
    for (const route of [...this.#source.routes()]) {
      if (!changed.has(route.id)) index.replaceRoute(undefined, route);
      if (slice.isOver()) await slice.yield();
    }
    changed = undefined;
    return index;
  }
}
