/** Recent changes of the kernel, and time series. */
import type { IpFamily } from '../../api/objects.ts';
import type { Page, Time } from './common.ts';

/**
 * `sync`: a sync wrote changes. `repair`: a resync wrote objects that no change of a Kubernetes object required, so
 * another program had changed them. `failure`: a sync failed. `external`: another program changed the agent's objects.
 */
export type ChangeKind = 'sync' | 'repair' | 'failure' | 'external';

/** One entry of the list of changes. */
export interface Change {
  /** Increases with each change. */
  readonly id: number;
  /** End of the sync, or detection of the external change. */
  readonly at: Time;
  readonly kind: ChangeKind;
  /** Of `policies` only external changes and their repair are listed. */
  readonly rules: 'Services' | 'policies';
  readonly family: IpFamily;
  /** Whether the sync compared everything with the kernel. */
  readonly full: boolean;
  /** Duration of the sync. null for external changes. */
  readonly seconds: number | null;
  /** From the first queued change to the end of the sync; null if no change was queued, and without a sync. */
  readonly queuedSeconds: number | null;
  /** Chains, elements or messages written. */
  readonly written: number;
  /** Deleted stale conntrack entries. */
  readonly deletedFlows: number;
  /** Services whose change was written, `namespace/name`; at most 20. */
  readonly services: readonly string[];
  /** Number of Services whose change was written. */
  readonly serviceCount: number;
  /** The failure or the external change. `repair`: the external change that it undid; empty if no watch or check found one before. Empty for `sync`. */
  readonly message: string;
  /** Number of consecutive equal failures or external changes that this entry stands for. */
  readonly count: number;
  /** External changes: end of the sync that undid the change; null if it is still in the kernel. */
  readonly undoneAt: Time | null;
}

/** `GET /api/v1/changes`: the latest changes, the newest first; at most 500 are kept. */
export type ChangeList = Page<Change>;

/** One time series of the agent. */
export interface Series {
  /** Stable identifier, such as `syncs`. */
  readonly name: string;
  /** What the values are, for a heading. */
  readonly title: string;
  /** `count`, `seconds`, `cores` or `bytes`. */
  readonly unit: 'count' | 'seconds' | 'cores' | 'bytes';
  /** One value for each time; null if it is unknown. */
  readonly values: readonly (number | null)[];
}

/** `GET /api/v1/series`: the last 15 minutes. */
export interface SeriesList {
  /** Seconds between two samples. */
  readonly intervalSeconds: number;
  /** Times of the samples, in seconds since 1970, ascending. */
  readonly times: readonly number[];
  readonly series: readonly Series[];
}
