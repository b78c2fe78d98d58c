/** Requests that create Events, or say that they came again. */
import { isRecord } from '../api/read-field.ts';
import { eventBody, namespaceOf, seriesPatch } from './event.ts';
import type { SeriesEntry } from './series.ts';

/** Requests that change something, with one set of credentials. */
export interface WriteSession {
  /**
   * @returns the object in the answer.
   * @throws errors with the HTTP status as `code` when the API server refuses, others else.
   */
  send(method: 'POST' | 'PATCH', path: string, body: object): Promise<unknown>;
  close(): void;
}

/** Opens a session with credentials read afresh; the signal ends its requests. */
export type OpenWriteSession = (signal: AbortSignal) => Promise<WriteSession>;

/**
 * Least time between two writes of a shared Event, in milliseconds, whichever nodes write. One node writes; the
 * others read that it was written.
 */
const SHARED_WRITE_INTERVAL_MS = 60_000;

/**
 * Writes one Event as it is now: creates it, or says that it came again.
 * @param instance of this node; see `instanceOn`.
 * @param now milliseconds since 1970.
 * @throws what the session throws.
 */
export async function writeEntry(
  session: WriteSession,
  entry: SeriesEntry,
  instance: string,
  now: number,
): Promise<void> {
  const { count, series, occurrence } = entry;
  // What it came to was written with an earlier request.
  if (count === entry.writtenCount) return;
  const namespace = encodeURIComponent(namespaceOf(occurrence.regarding));
  const path = `/apis/events.k8s.io/v1/namespaces/${namespace}/events`;
  /** @returns false if an Event of this name exists. */
  const create = async (): Promise<boolean> => {
    const body = eventBody(occurrence, instance, entry, series);
    try {
      await session.send('POST', path, body);
      return true;
    } catch (error) {
      if (statusOf(error) !== 409) throw error;
      return false;
    }
  };
  /** @returns undefined if the Event is gone: the API server deletes Events, after an hour by default. */
  const patch = async (patched: object): Promise<{ event: unknown } | undefined> => {
    try {
      const its = `${path}/${encodeURIComponent(entry.name)}`;
      return { event: await session.send('PATCH', its, patched) };
    } catch (error) {
      if (statusOf(error) !== 404) throw error;
      return undefined;
    }
  };
  /** Creates a shared Event, or raises its count, unless another node did so recently. Most often it only looks. */
  const writeShared = async (): Promise<void> => {
    // An empty patch reads the Event and stores nothing, with the right to patch instead of one to get.
    const existing = await patch({});
    if (existing === undefined) return void (await create());
    const last = lastOccurrence(existing.event);
    const { lastObserved } = entry;
    if (last === undefined || lastObserved - last.time < SHARED_WRITE_INTERVAL_MS) return;
    try {
      await patch(seriesPatch({ count: last.count + 1, lastObserved }));
    } catch (error) {
      // Another node is raising it.
      if (statusOf(error) !== 409) throw error;
    }
  };
  const isNew = entry.writtenCount === 0 || series === undefined;
  if (occurrence.scope === 'cluster') await writeShared();
  else if (isNew || (await patch(seriesPatch(series))) === undefined) {
    // If it exists, an earlier attempt created it and its answer was lost.
    await create();
  }
  entry.writtenCount = count;
  entry.writtenAt = now;
}

/** Count and time (milliseconds since 1970) of an Event's last occurrence; undefined if they cannot be read. */
function lastOccurrence(event: unknown): { count: number; time: number } | undefined {
  if (!isRecord(event)) return undefined;
  const { eventTime, series } = event;
  const { count = 1, lastObservedTime = eventTime } = isRecord(series) ? series : {};
  const time = Date.parse(String(lastObservedTime));
  return typeof count === 'number' && !Number.isNaN(time) ? { count, time } : undefined;
}

/** Whether the same request may succeed later: the server was not reached, or was not well. */
export function isRetryable(error: unknown): boolean {
  const status = statusOf(error);
  // 401: credentials ran out; the next session has new ones.
  return status === undefined || status === 401 || status === 429 || status >= 500;
}

/** The HTTP status that an error tells; those of Node have words for codes. */
function statusOf(error: unknown): number | undefined {
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  return typeof code === 'number' ? code : undefined;
}
