import { eventBody, namespaceOf, type Reporter, seriesPatch } from './event.ts';
import type { SeriesEntry } from './series.ts';

/** Requests that change something, with one set of credentials. */
export interface WriteSession {
  /** @throws errors with the HTTP status as `code` when the API server refuses, others else. */
  send(method: 'POST' | 'PATCH', path: string, body: object, signal: AbortSignal): Promise<unknown>;
  close(): void | Promise<void>;
}

/** Opens a session with credentials read afresh. */
export type OpenWriteSession = (signal: AbortSignal) => Promise<WriteSession>;

/**
 * Writes one Event as it is now: creates it, or says that it came again.
 * @param now milliseconds since 1970.
 * @throws what the session throws.
 */
export async function writeEntry(
  session: WriteSession,
  entry: SeriesEntry,
  reporter: Reporter,
  now: number,
  signal: AbortSignal,
): Promise<void> {
  const { count, series, occurrence } = entry;
  // What it came to was written with an earlier request.
  if (count === entry.written) return;
  const namespace = encodeURIComponent(namespaceOf(occurrence.regarding));
  const path = `/apis/events.k8s.io/v1/namespaces/${namespace}/events`;
  const create = async () => {
    const body = eventBody(occurrence, reporter, entry, series);
    await session.send('POST', path, body, signal).catch((error: unknown) => {
      // An earlier attempt got there, and its answer did not get here.
      if (statusOf(error) !== 409) throw error;
    });
  };
  if (entry.written === 0 || series === undefined) {
    await create();
  } else {
    try {
      const name = encodeURIComponent(entry.name);
      await session.send('PATCH', `${path}/${name}`, seriesPatch(series), signal);
    } catch (error) {
      // Events are deleted after a time, an hour by default.
      if (statusOf(error) !== 404) throw error;
      await create();
    }
  }
  entry.written = count;
  entry.writtenAt = now;
}

/** Whether the same request may succeed later: the server was not reached, or was not well. */
export function isPassing(error: unknown): boolean {
  const status = statusOf(error);
  // 401: credentials ran out; the next session has new ones.
  return status === undefined || status === 401 || status === 429 || status >= 500;
}

/** The HTTP status that an error tells; those of Node have words for codes. */
function statusOf(error: unknown): number | undefined {
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  return typeof code === 'number' ? code : undefined;
}
