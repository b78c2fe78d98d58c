/**
 * Deletes affinity entries of removed endpoints. An entry may expire at any time, and the kernel refuses a
 * whole transaction that deletes an expired entry.
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
import { fieldWidth } from './maps.ts';

export interface AffinityCleanupOptions {
  readonly family: IpFamily;
  /** Whether to delete entries of VIPs and ports without session affinity, see `isStaleAffinity`. */
  readonly deletesUnknown: boolean;
  readonly onWarning: (message: string, fields: Readonly<Record<string, unknown>>) => void;
}

/** Small enough that an entry rarely expires between the dump and the transaction. */
const ENTRIES_PER_TRANSACTION = 500;
/** An entry that expires within this many milliseconds is not deleted; the kernel removes it. */
const EXPIRY_MARGIN = 100;
/** Maximum number of dumps of a map. A stale entry about to expire is skipped, and its client may renew it. */
const MAX_ATTEMPTS = 5;

/** An element of an affinity map. */
interface AffinityEntry extends NftElement {
  /** Milliseconds on the clock of `performance`; Infinity without a timeout. */
  readonly expiresAt: number;
}

/**
 * Deletions of all stale entries that are not about to expire.
 * @throws NetlinkError
 */
export async function staleAffinityDeletions(
  tables: RuleTable,
  index: AffinityTargetIndex,
  options: AffinityCleanupOptions,
): Promise<NftElementChange[]> {
  const deletions: NftElementChange[] = [];
  for (const [set, targets] of index) {
    const entries = await staleEntries(tables, set, targets, options);
    deletions.push({ action: 'delete', set, elements: withoutExpiring(entries) });
  }
  return deletions;
}

/**
 * Deletes all stale entries, also when entries expire or clients renew expiring entries meanwhile. Logs a warning if
 * stale entries remain after `MAX_ATTEMPTS` dumps.
 * @returns the number of entries that were deleted or expired during the deletion.
 * @throws NftRefusedError, NetlinkError
 */
export async function deleteStaleAffinity(
  tables: RuleTable,
  index: AffinityTargetIndex,
  options: AffinityCleanupOptions,
): Promise<number> {
  let deleted = 0;
  for (let attempt = 1; ; attempt++) {
    let remaining = 0;
    for (const [set, targets] of index) {
      const entries = await staleEntries(tables, set, targets, options);
      for (let start = 0; start < entries.length; start += ENTRIES_PER_TRANSACTION) {
        const batch = entries.slice(start, start + ENTRIES_PER_TRANSACTION);
        const count = await deleteEntries(tables, set, withoutExpiring(batch));
        deleted += count;
        remaining += batch.length - count;
      }
    }
    if (remaining === 0) return deleted;
    if (attempt === MAX_ATTEMPTS) {
      options.onWarning('cannot delete all stale session affinity entries', {
        entries: remaining,
        effect: 'these clients may be sent to removed endpoints until the entries expire',
      });
      return deleted;
    }
    // Wait for the entries that were about to expire. A client that connected again has renewed its entry.
    await sleep(EXPIRY_MARGIN);
  }
}

async function staleEntries(
  tables: RuleTable,
  set: string,
  targets: ReadonlyMap<string, AffinityTargets>,
  { family, deletesUnknown }: AffinityCleanupOptions,
): Promise<AffinityEntry[]> {
  const addressLength = fieldWidth('address', family);
  const entries = new Map<string, AffinityEntry>();
  const visit = (element: NftElement) => {
    if (!isStaleAffinity(element, targets, addressLength, deletesUnknown)) return;
    const key = Buffer.from(element.key);
    const { timeoutMs = Infinity } = element;
    entries.set(elementKeyText(element), { key, expiresAt: performance.now() + timeoutMs });
  };
  await tables.visitElements(set, visit, () => entries.clear());
  return [...entries.values()];
}

/** The entries that will not expire before the transaction reaches the kernel. */
function withoutExpiring(entries: readonly AffinityEntry[]): AffinityEntry[] {
  const soon = performance.now() + EXPIRY_MARGIN;
  return entries.filter(({ expiresAt }) => expiresAt > soon);
}

/** @returns the number of entries that no longer exist. */
async function deleteEntries(
  tables: RuleTable,
  set: string,
  entries: readonly NftElement[],
): Promise<number> {
  let elements = entries;
  for (;;) {
    try {
      await tables.transact([{ action: 'delete', set, elements }]);
      return entries.length;
    } catch (error) {
      if (!(error instanceof NftRefusedError) || error.errno !== ENOENT) throw error;
      const expired = error.element;
      // Some kernels do not name the refused element.
      if (expired === undefined) return 0;
      elements = elements.filter((entry) => entry !== expired);
    }
  }
}
