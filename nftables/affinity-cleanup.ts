/**
 * Deletes what packets noted of endpoints that went. Notes end by themselves at any time, and one that
 * has ended has the kernel refuse all that were to be deleted with it.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import type { IpFamily } from '../api/objects.ts';
import { ENOENT } from '../netlink/core/error.ts';
import {
  type NftElement,
  type NftElementChange,
  NftRefusedError,
} from '../netlink/nftables/tables.ts';
import { elementKeyText } from '../nft/element.ts';
import type { RuleTable } from '../nft/table.ts';
import { type AffinityTargetIndex, type AffinityTargets, isStaleAffinity } from './affinity.ts';
import { widthOf } from './maps.ts';

export interface AffinityCleanupOptions {
  readonly family: IpFamily;
  /** What is of no VIP that is known goes, too. */
  readonly deletesUnknown: boolean;
  readonly onWarning: (message: string) => void;
}

/** Few enough that hardly one of them ends on the way to the kernel. */
const ENTRIES_PER_TRANSACTION = 500;
/** Milliseconds before its end from which on a note is left to end by itself. */
const EXPIRY_MARGIN = 100;
/** More may be noted anew while what there is is looked at. */
const MAX_ATTEMPTS = 5;

/** An element of a map that packets write. */
interface AffinityEntry extends NftElement {
  /** By the clock of `performance`; never: Infinity. */
  readonly expiresAt: number;
}

/**
 * Deletions of what leads clients to where nobody should be led any more, but for what is about to end.
 * @throws NetlinkError
 */
export async function staleAffinityDeletions(
  tables: RuleTable,
  loyalties: AffinityTargetIndex,
  forgetting: AffinityCleanupOptions,
): Promise<NftElementChange[]> {
  const broken: NftElementChange[] = [];
  for (const [set, left] of loyalties) {
    const notes = await staleEntries(tables, set, left, forgetting);
    broken.push({ action: 'delete', set, elements: withoutExpiring(notes) });
  }
  return broken;
}

/**
 * Deletes the same, however many clients come and end meanwhile.
 * @returns how many were forgotten.
 * @throws NftRefusedError, NetlinkError
 */
export async function deleteStaleAffinity(
  tables: RuleTable,
  loyalties: AffinityTargetIndex,
  forgetting: AffinityCleanupOptions,
): Promise<number> {
  let forgotten = 0;
  for (let attempt = 1; ; attempt++) {
    let left = 0;
    for (const [set, known] of loyalties) {
      const notes = await staleEntries(tables, set, known, forgetting);
      for (let start = 0; start < notes.length; start += ENTRIES_PER_TRANSACTION) {
        const some = notes.slice(start, start + ENTRIES_PER_TRANSACTION);
        const gone = await deleteEntries(tables, set, withoutExpiring(some));
        forgotten += gone;
        left += some.length - gone;
      }
    }
    if (left === 0) return forgotten;
    if (attempt === MAX_ATTEMPTS) {
      forgetting.onWarning(`${left} clients may be led to endpoints that are gone`);
      return forgotten;
    }
    // Those about to end have done so then, unless the client came again.
    await sleep(EXPIRY_MARGIN);
  }
}

async function staleEntries(
  tables: RuleTable,
  set: string,
  known: ReadonlyMap<string, AffinityTargets>,
  { family, deletesUnknown: unknown }: AffinityCleanupOptions,
): Promise<AffinityEntry[]> {
  const addressLength = widthOf('address', family);
  const notes = new Map<string, AffinityEntry>();
  const visit = (element: NftElement) => {
    if (!isStaleAffinity(element, known, addressLength, unknown)) return;
    const key = Buffer.from(element.key);
    const { timeoutMs = Infinity } = element;
    notes.set(elementKeyText(element), { key, expiresAt: performance.now() + timeoutMs });
  };
  await tables.visitElements(set, visit, () => notes.clear());
  return [...notes.values()];
}

/** Those that do not end by themselves on the way to the kernel. */
function withoutExpiring(notes: readonly AffinityEntry[]): AffinityEntry[] {
  const soon = performance.now() + EXPIRY_MARGIN;
  return notes.filter(({ expiresAt: endsAt }) => endsAt > soon);
}

/** @returns how many of them are gone. */
async function deleteEntries(
  tables: RuleTable,
  set: string,
  notes: readonly NftElement[],
): Promise<number> {
  let elements = notes;
  for (;;) {
    try {
      await tables.transact([{ action: 'delete', set, elements }]);
      return notes.length;
    } catch (error) {
      if (!(error instanceof NftRefusedError) || error.errno !== ENOENT) throw error;
      const ended = error.element;
      // Not every kernel names it.
      if (ended === undefined) return 0;
      elements = elements.filter((note) => note !== ended);
    }
  }
}
