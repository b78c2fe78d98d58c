/** The objects of a backend in the kernel, compared with the desired objects. */
import type { ObjectKey } from '../api/objects.ts';

/**
 * `ok`: as it should be. `missing`: not in the kernel. `changed`: in the kernel with another value. `unexpected`: in
 * the kernel, but the agent has no use for it.
 */
export type ComparedState = 'ok' | 'missing' | 'changed' | 'unexpected';

/** A chain, rule, map element, IPVS service or the like. */
export interface ComparedObject {
  /** Such as `element`, `chain`, `rule`, `IPVS service`, `IPVS destination`, `ipset entry`, `address`. */
  readonly type: string;
  /** The table, chain, map, set or device that contains the object. */
  readonly in: string;
  /** As the tool of the mode writes it (nft, iptables-save, ipvsadm, ipset); null if it should not exist. */
  readonly desired: string | null;
  /** As the kernel has it; null if it is missing. */
  readonly actual: string | null;
  readonly state: ComparedState;
  /** `namespace/name` of the Service that needs the object; null for objects of all Services. */
  readonly service: ObjectKey | null;
}

/** The result of `Backend.compare`. */
export interface Comparison {
  /** Number of objects compared. */
  readonly compared: number;
  /** Number of objects whose state is not `ok`. */
  readonly different: number;
  /**
   * Objects whose state is not `ok` come first. For one Service, the others follow. At most `MAX_COMPARED_OBJECTS` of
   * either kind.
   */
  readonly objects: readonly ComparedObject[];
  readonly syncs: SyncSpan;
}

/** Syncs of a backend, in the order of their beginnings, counted from 1. They end in the same order. */
export interface SyncSpan {
  /** Number of the last sync that had ended when the comparison began. */
  readonly ended: number;
  /** Number of the last sync that had begun when the comparison ended. If greater, syncs ran meanwhile. */
  readonly begun: number;
}
