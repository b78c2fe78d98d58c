/** Says why the rules of an IP family may be old. Pure. */
import type { UnsyncedFamily } from '../api/kernel.ts';

export function unsyncedText(family: UnsyncedFamily): string {
  return `${family.family}: ${unsyncedReason(family)}`;
}

/** Without the family. */
export function unsyncedReason({ hasSynced, error }: UnsyncedFamily): string {
  const what = hasSynced ? 'the last sync failed' : 'not synced yet';
  return error === null ? what : `${what}: ${error}`;
}
