/** Requests as resources of the status API get them, one by one. */
import type { ResourceRequest } from '../../status/http/handler.ts';
import type { WaitOutside } from '../../status/http/request-budget.ts';

export function requestOf(fields: Partial<ResourceRequest> = {}): ResourceRequest {
  const { signal } = new AbortController();
  return { path: [], signal, waitOutside: (run) => run(), ...fields };
}

/** A budget that starts each request at once. */
export const UNLIMITED = {
  run: async <T>(request: (waitOutside: WaitOutside) => Promise<T> | T): Promise<T> =>
    await request((run) => run()),
};
