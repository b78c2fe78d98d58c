/** Requests that create Events or update their series. */
import { isRecord } from '../api/read-field.ts';
import { eventBody, namespaceOf, seriesPatch } from './event.ts';
import type { SeriesEntry } from './series.ts';

/** Write requests with one set of credentials. */
export interface WriteSession {
  /**
   * @returns the object in the response.
   * @throws Error with the HTTP status as `code` if the API server rejects the request, otherwise
   * another error.
   */
  send(method: 'POST' | 'PATCH', path: string, body: object): Promise<unknown>;
  close(): void;
}

/** Opens a session with freshly read credentials. The signal ends its requests. */
export type OpenWriteSession = (signal: AbortSignal) => Promise<WriteSession>;

/**
 * Minimum milliseconds between two writes of a shared Event by any nodes. One node writes; the other
 * nodes read the result.
 */
const SHARED_WRITE_INTERVAL_MS = 60_000;

/**
 * Creates an Event, or updates its series.
 * @param instance `reportingInstance` of this node.
 * @param now milliseconds since 1970.
 * @throws the errors of the session.
 */
export async function writeEntry(
  session: WriteSession,
  entry: SeriesEntry,
  instance: string,
  now: number,
): Promise<void> {
  const { count, series, occurrence } = entry;
  // An earlier request already wrote this count.
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
  /**
   * @returns undefined if the Event does not exist: the API server deletes Events, by default after
   * an hour.
   */
  const patch = async (change: object): Promise<{ event: unknown } | undefined> => {
    try {
      const eventPath = `${path}/${encodeURIComponent(entry.name)}`;
      return { event: await session.send('PATCH', eventPath, change) };
    } catch (error) {
      if (statusOf(error) !== 404) throw error;
      return undefined;
    }
  };
  /**
   * Creates a shared Event or increments its count, unless another node did so recently. Usually
   * this only reads the Event.
   */
  const writeShared = async (): Promise<void> => {
    // An empty patch reads the Event and stores nothing. The request needs only the permission to
    // patch, not an additional permission to get.
    const existing = await patch({});
    if (existing === undefined) return void (await create());
    const last = lastOccurrence(existing.event);
    const { lastObserved } = entry;
    if (last === undefined || lastObserved - last.time < SHARED_WRITE_INTERVAL_MS) return;
    try {
      await patch(seriesPatch({ count: last.count + 1, lastObserved }));
    } catch (error) {
      // Another node updated the Event at the same time.
      if (statusOf(error) !== 409) throw error;
    }
  };
  const isNew = entry.writtenCount === 0 || series === undefined;
  if (occurrence.scope === 'cluster') await writeShared();
  else if (isNew || (await patch(seriesPatch(series))) === undefined) {
    // A conflict means that an earlier attempt created the Event and the response was lost.
    await create();
  }
  entry.writtenCount = count;
  entry.writtenAt = now;
}

/**
 * Count and time (milliseconds since 1970) of an Event's last occurrence; undefined if unreadable.
 */
function lastOccurrence(event: unknown): { count: number; time: number } | undefined {
  if (!isRecord(event)) return undefined;
  const { eventTime, series } = event;
  const { count = 1, lastObservedTime = eventTime } = isRecord(series) ? series : {};
  const time = Date.parse(String(lastObservedTime));
  return typeof count === 'number' && !Number.isNaN(time) ? { count, time } : undefined;
}

/** Whether a retry may succeed: the server was unreachable or returned a temporary error. */
export function isRetryable(error: unknown): boolean {
  const status = statusOf(error);
  // 401: the credentials expired; the next session reads new credentials.
  return status === undefined || status === 401 || status === 429 || status >= 500;
}

/** The HTTP status of an error. Errors of Node have strings as codes. */
function statusOf(error: unknown): number | undefined {
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  return typeof code === 'number' ? code : undefined;
}
