/** Says why the rules of an IP family may be old. Pure. */
import type { UnsyncedFamily } from '../api/kernel.ts';

export function unsyncedText({ family, hasSynced, error }: UnsyncedFamily): string {
  const what = hasSynced ? 'the last sync failed' : 'not synced yet';
  return `${family}: ${what}${error === null ? '' : `: ${error}`}`;
}
