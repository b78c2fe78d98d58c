/** The agent's objects in the kernel: as they are, and as they should be. */
import type { IpFamily } from '../../api/objects.ts';
import type { ComparedObject } from '../../proxier/compared-object.ts';
import type { Page } from './common.ts';

/** A chain, rule, map element, IPVS service or the like. */
export interface KernelObject extends ComparedObject {
  readonly family: IpFamily;
}

/** `GET /api/v1/diff`: objects whose state is not `ok`. */
export interface KernelDiff extends Page<KernelObject> {
  /** Number of further differences that the agent left out, because there are too many. */
  readonly omitted: number;
  /** Number of objects compared. */
  readonly compared: number;
  /** false if syncs changed rules during each comparison, so differences may be changes in progress. */
  readonly stable: boolean;
}
