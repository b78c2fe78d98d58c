/** Dumps lists of nf_tables, also while other programs change nf_tables all the time. */
import { setTimeout as sleep } from 'node:timers/promises';
import { EINTR, NetlinkError } from '../core/error.ts';
import type { Dump } from '../core/socket.ts';

const ATTEMPTS = 20;
const MAX_PAUSE_MS = 64;

/**
 * Repeats an interrupted dump, with growing pauses. The kernel says that a dump is interrupted whenever any table of the
 * network namespace changes between two of its parts (nl_dump_check_consistent).
 * @param operation The subject of the error.
 * @param completed Called with each interrupted dump. Returns the list if it is whole nevertheless. Its first result
 * does not count: a change of the table itself is unlikely twice. Default: no interrupted dump is whole.
 * @throws NetlinkError EINTR if nf_tables changed during all dumps; whatever `dump` throws.
 */
export async function wholeDump<T>(
  operation: string,
  dump: () => Promise<Dump<T>>,
  completed: (dumped: T[]) => Promise<T[] | undefined> = async () => undefined,
  pause: (milliseconds: number) => Promise<unknown> = sleep,
): Promise<T[]> {
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    if (attempt > 1) await pause(Math.min(2 ** (attempt - 2), MAX_PAUSE_MS));
    const { picked, isInterrupted } = await dump();
    if (!isInterrupted) return picked;
    const whole = await completed(picked);
    if (whole !== undefined && attempt > 0) return whole;
  }
  const detail = `nf_tables changed during each of ${ATTEMPTS} dumps`;
  throw new NetlinkError(operation, EINTR, undefined, { detail });
}

/**
 * Unites interrupted dumps of chains until all chains are found. The kernel continues a dump at an index among the chains
 * of all tables of the family (nf_tables_dump_chains). If a chain of another table disappears between two parts, the dump
 * lacks a chain.
 * @param count The number of chains in the table.
 */
export function uniteChains<T>(
  nameOf: (chain: T) => string,
  count: () => Promise<number>,
): (dumped: T[]) => Promise<T[] | undefined> {
  const found = new Map<string, T>();
  return async (dumped) => {
    for (const chain of dumped) found.set(nameOf(chain), chain);
    return found.size === (await count()) ? [...found.values()] : undefined;
  };
}
