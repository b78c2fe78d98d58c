/** The agent's objects in the kernel: as they are, and as they should be. */
import type { IpFamily } from '../../api/objects.ts';
import type { ComparedObject } from '../../proxier/compared-object.ts';
import type { Page } from './common.ts';

/** A chain, rule, map element, IPVS service or the like. */
export interface KernelObject extends ComparedObject {
  readonly family: IpFamily;
  /** Whether a sync may be changing the object, so that the difference is no fault; false if the state is `ok`. */
  readonly inProgress: boolean;
}

/** An IP family whose rules in the kernel may be old. */
export interface UnsyncedFamily {
  readonly family: IpFamily;
  /** false if no sync has succeeded since the start of the agent: then nothing may have been compared. */
  readonly hasSynced: boolean;
  /** Why the last sync failed; null: it has not ended. */
  readonly error: string | null;
}

/**
 * `GET /api/v1/diff`: objects whose state is not `ok`, from one comparison. Changes in progress come last. There is one
 * page; further objects are counted.
 */
export interface KernelDiff extends Page<KernelObject> {
  /** Number of objects that `items` lacks. */
  readonly omitted: number;
  /** Number of objects compared, of all namespaces. */
  readonly compared: number;
  /** Number of differences, without changes in progress. */
  readonly different: number;
  /** Number of differences that syncs may be about to end. */
  readonly inProgress: number;
  /** false if syncs ran during each comparison. Then only differences that all comparisons found count as such. */
  readonly stable: boolean;
  /** Families that were never synced, or whose last sync failed. */
  readonly unsynced: readonly UnsyncedFamily[];
}
