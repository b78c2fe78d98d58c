/**
 * Deletes what packets noted of endpoints that went. Notes end by themselves at any time, and one that
 * has ended has the kernel refuse all that were to be deleted with it.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import type { IpFamily } from '../api/objects.ts';
import { ENOENT } from '../netlink/core/error.ts';
import { type NftChange, type NftElement, NftRefusedError } from '../netlink/nftables/tables.ts';
import { keyText } from '../nft/element.ts';
import type { RuleTable } from '../nft/table.ts';
import { isBroken, type Loyalties, type Loyalty } from './affinity.ts';
import { widthOf } from './maps.ts';

export interface Forgetting {
  readonly family: IpFamily;
  /** What is of no VIP that is known goes, too. */
  readonly unknown: boolean;
  readonly onWarning: (message: string) => void;
}

/** Few enough that hardly one of them ends on the way to the kernel. */
const NOTES_PER_TRANSACTION = 500;
/** Milliseconds before its end from which on a note is left to end by itself. */
const ENDING = 100;
/** More may be noted anew while what there is is looked at. */
const ATTEMPTS = 5;

/** An element of a map that packets write. */
interface Note extends NftElement {
  /** By the clock of `performance`; never: Infinity. */
  readonly endsAt: number;
}

/**
 * Deletions of what leads clients to where nobody should be led any more, but for what is about to end.
 * @throws NetlinkError
 */
export async function brokenNotes(
  tables: RuleTable,
  loyalties: Loyalties,
  forgetting: Forgetting,
): Promise<NftChange[]> {
  const broken: NftChange[] = [];
  for (const [set, left] of loyalties) {
    const notes = await notesOf(tables, set, left, forgetting);
    broken.push({ action: 'delete', set, elements: lasting(notes) });
  }
  return broken;
}

/**
 * Deletes the same, however many clients come and end meanwhile.
 * @returns how many were forgotten.
 * @throws NftRefusedError, NetlinkError
 */
export async function forget(
  tables: RuleTable,
  loyalties: Loyalties,
  forgetting: Forgetting,
): Promise<number> {
  let forgotten = 0;
  for (let attempt = 1; ; attempt++) {
    let left = 0;
    for (const [set, known] of loyalties) {
      const notes = await notesOf(tables, set, known, forgetting);
      for (let start = 0; start < notes.length; start += NOTES_PER_TRANSACTION) {
        const some = notes.slice(start, start + NOTES_PER_TRANSACTION);
        const gone = await deleteNotes(tables, set, lasting(some));
        forgotten += gone;
        left += some.length - gone;
      }
    }
    if (left === 0) return forgotten;
    if (attempt === ATTEMPTS) {
      forgetting.onWarning(`${left} clients may be led to endpoints that are gone`);
      return forgotten;
    }
    // Those about to end have done so then, unless the client came again.
    await sleep(ENDING);
  }
}

async function notesOf(
  tables: RuleTable,
  set: string,
  known: ReadonlyMap<string, Loyalty>,
  { family, unknown }: Forgetting,
): Promise<Note[]> {
  const addressLength = widthOf('address', family);
  const notes = new Map<string, Note>();
  const visit = (element: NftElement) => {
    if (!isBroken(element, known, addressLength, unknown)) return;
    const key = Buffer.from(element.key);
    const { timeoutMs = Infinity } = element;
    notes.set(keyText(element), { key, endsAt: performance.now() + timeoutMs });
  };
  await tables.visitElements(set, visit, () => notes.clear());
  return [...notes.values()];
}

/** Those that do not end by themselves on the way to the kernel. */
function lasting(notes: readonly Note[]): Note[] {
  const soon = performance.now() + ENDING;
  return notes.filter(({ endsAt }) => endsAt > soon);
}

/** @returns how many of them are gone. */
async function deleteNotes(
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
