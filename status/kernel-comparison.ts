/**
 * Compares the agent's objects in the kernel with the applied state. Changes that wait for a sync are no differences. If
 * a sync runs during a comparison, the objects that it changes seem to differ: the comparison is repeated.
 */
import type { IpFamily, ObjectKey } from '../api/objects.ts';
import type { Backend } from '../proxier/backend.ts';
import type { ComparedObject, Comparison } from '../proxier/compared-object.ts';
import { syncPrecedence } from '../sync/precedence.ts';
import { systemTimers, type Timers } from '../sync/timers.ts';
import type { KernelDiff, KernelObject, UnsyncedFamily } from './api/kernel.ts';
import type { ResourceRequest } from './http/handler.ts';
import { DEFAULT_LIMIT } from './http/paging.ts';
import { SharedWork } from './shared-work.ts';
import type { StatusSources } from './sources.ts';

/** Attempts to compare a family while no sync runs. */
const MAX_ATTEMPTS = 4;
/** Most milliseconds for the comparison of one Service, with the wait for comparisons of other Services. */
const MAX_SERVICE_WAIT = 10_000;
/** Most milliseconds to wait for the end of a sync before another attempt. */
const MAX_WAIT = 3000;

export interface KernelComparison {
  /** First differences, then changes in progress; for one Service, then the objects that are as they should be. */
  readonly objects: readonly KernelObject[];
  readonly compared: number;
  /** Number of differences without changes in progress; `objects` may lack some. */
  readonly different: number;
  /** Number of differences that may be changes in progress. */
  readonly inProgress: number;
  /** Whether no sync ran during the comparison of any family. */
  readonly stable: boolean;
  readonly unsynced: readonly UnsyncedFamily[];
}

/** What to compare; undefined: all of them. */
export interface ComparisonScope {
  readonly family: IpFamily | undefined;
  readonly service: ObjectKey | undefined;
  readonly namespace?: string | undefined;
}

/** Other comparisons took too long. */
class ComparisonTimeout extends Error {
  override readonly name = 'ComparisonTimeout';

  constructor() {
    super(`no comparison within ${MAX_SERVICE_WAIT / 1000} s`);
  }
}

type Sources = Pick<StatusSources, 'backends' | 'families' | 'syncs'>;

/** A request for a comparison. It leaves its place to others, because comparisons have bounds of their own. */
export type ComparisonRequest = Pick<ResourceRequest, 'signal' | 'waitOutside'>;

/**
 * Answers requests for comparisons. Memory and time are bounded: there is one comparison of all Services and one of one
 * Service at a time, see `SharedWork`.
 */
export class KernelComparisons {
  readonly #sources: Sources;
  readonly #timers: Timers;
  readonly #ofAll: SharedWork<KernelComparison>;
  readonly #ofOne: SharedWork<KernelComparison>;

  constructor(sources: Sources, timers: Timers = systemTimers) {
    this.#sources = sources;
    this.#timers = timers;
    this.#ofAll = new SharedWork(timers, 10_000);
    this.#ofOne = new SharedWork(timers, 1000);
  }

  /**
   * Compares after the call, once for all that wait for the same scope.
   * The comparison stops when all its clients are gone.
   * @throws errors of reading the kernel; the reason of the signal; ComparisonTimeout for one Service.
   */
  async compare(
    scope: ComparisonScope,
    { signal, waitOutside }: ComparisonRequest,
  ): Promise<KernelComparison> {
    const { family = '', service, namespace = '' } = scope;
    const work = (allGone: AbortSignal) => compareWithKernel(this.#sources, scope, allGone);
    if (service === undefined) {
      return await waitOutside(() => this.#ofAll.run(`${family} ${namespace}`, work, signal));
    }
    const expired = new AbortController();
    const timer = this.#timers.set(() => expired.abort(new ComparisonTimeout()), MAX_SERVICE_WAIT);
    const either = AbortSignal.any([signal, expired.signal]);
    try {
      return await waitOutside(() => this.#ofOne.run(`${family} ${service}`, work, either));
    } finally {
      this.#timers.clear(timer);
    }
  }
}

/** @param limit most objects to list. */
export function kernelDiff(
  { objects, ...comparison }: KernelComparison,
  limit: number | undefined,
): KernelDiff {
  const items = objects.slice(0, limit ?? DEFAULT_LIMIT);
  const total = comparison.different + comparison.inProgress;
  return { items, total, continue: null, omitted: total - items.length, ...comparison };
}

async function compareWithKernel(
  { backends, families, syncs }: Sources,
  { family, service, namespace }: ComparisonScope,
  signal: AbortSignal,
): Promise<KernelComparison> {
  const isIncluded = (other: IpFamily) => family === undefined || other === family;
  const all: FamilyComparison[] = [];
  const compareOnce = (backend: Backend) => backend.compare?.(service, signal, namespace);
  for (const backend of backends()) {
    if (isIncluded(backend.family)) all.push(await compareFamily(backend, compareOnce, signal));
  }
  const sum = (count: (of: FamilyComparison) => number) =>
    all.reduce((total, of) => total + count(of), 0);
  const rank = ({ state, inProgress }: KernelObject) => (state === 'ok' ? 2 : inProgress ? 1 : 0);
  return {
    objects: all.flatMap(({ objects }) => objects).sort((a, b) => rank(a) - rank(b)),
    compared: sum(({ compared }) => compared),
    different: sum(({ different }) => different),
    inProgress: sum(({ inProgress }) => inProgress),
    stable: all.every(({ stable }) => stable),
    unsynced: families.filter(isIncluded).flatMap((of): UnsyncedFamily[] => {
      const { lastSync, failure } = syncs.family(of);
      if (lastSync !== undefined && failure === undefined) return [];
      return [{ family: of, hasSynced: lastSync !== undefined, error: failure?.message ?? null }];
    }),
  };
}

type FamilyComparison = Omit<KernelComparison, 'unsynced'>;

/**
 * Compares until no sync runs meanwhile. If syncs run during every attempt, only differences that all attempts find
 * count. An object that one sync changes does not differ during the next sync. So they count only if the first and the
 * last attempt saw different syncs.
 */
async function compareFamily(
  backend: Backend,
  compareOnce: (backend: Backend) => Promise<Comparison> | undefined,
  signal: AbortSignal,
): Promise<FamilyComparison> {
  let common: ReadonlySet<string> | undefined;
  let firstBegun: number | undefined;
  for (let attempt = 1; ; attempt += 1) {
    // An attempt during the same sync would find the same changes in progress.
    if (attempt > 1) await syncPrecedence.idle(MAX_WAIT);
    signal.throwIfAborted();
    const found = (await compareOnce(backend)) ?? NOTHING;
    const { begun, ended } = found.syncs;
    const differences = found.objects.filter(({ state }) => state !== 'ok');
    firstBegun ??= begun;
    const isSameSync = firstBegun > ended;
    const stable = begun === ended;
    if (stable || found.different === 0 || attempt === MAX_ATTEMPTS) {
      const isInProgress = (object: ComparedObject) =>
        !stable && (isSameSync || common?.has(identity(object)) !== true);
      return familyComparison(backend.family, found, stable, isInProgress);
    }
    // An attempt with too many differences does not list all.
    if (differences.length === found.different) {
      const known = new Set(differences.map(identity));
      common = common === undefined ? known : inBoth(common, known);
    }
  }
}

const NOTHING: Comparison = {
  compared: 0,
  different: 0,
  objects: [],
  syncs: { ended: 0, begun: 0 },
};

function familyComparison(
  family: IpFamily,
  { compared, different, objects }: Comparison,
  stable: boolean,
  isInProgress: (object: ComparedObject) => boolean,
): FamilyComparison {
  let inProgress = 0;
  const marked = objects.map((object) => {
    const isChanging = object.state !== 'ok' && isInProgress(object);
    if (isChanging) inProgress += 1;
    return { family, ...object, inProgress: isChanging };
  });
  // If all listed differences may be changes in progress, so may the others.
  const listed = objects.filter(({ state }) => state !== 'ok').length;
  if (inProgress === listed) inProgress = different;
  return { objects: marked, compared, different: different - inProgress, inProgress, stable };
}

function inBoth(some: ReadonlySet<string>, others: ReadonlySet<string>): Set<string> {
  return new Set([...some].filter((each) => others.has(each)));
}

/** The same text for the same difference. */
function identity({ type, in: container, state, desired, actual }: ComparedObject): string {
  return JSON.stringify([type, container, state, desired, actual]);
}
