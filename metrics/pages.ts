/** HTTP pages by path. */
import type { RequestListener } from 'node:http';
import type { Registry } from 'prom-client';

/** Content of a page. */
export interface Page {
  readonly type: string;
  readonly body: string;
  /** HTTP status; default 200. */
  readonly code?: number;
}

/** Pages by path. Each is generated per request, from the `Accept` header. */
export type Pages = Readonly<Record<string, (accept: string | undefined) => Page | Promise<Page>>>;

export const TEXT = 'text/plain; charset=utf-8';

/** Page with the metrics of a registry. */
export function metricsPage(registry: Registry): () => Promise<Page> {
  return async () => ({ type: registry.contentType, body: await registry.metrics() });
}

/** Serves pages. A page that throws is answered with status 500, an unknown path with 404. */
export function pageHandler(pages: Pages): RequestListener {
  const answer = async (path: string, accept: string | undefined): Promise<Required<Page>> => {
    const page = Object.hasOwn(pages, path) ? pages[path] : undefined;
    if (page === undefined) return { code: 404, type: TEXT, body: '404 page not found\n' };
    try {
      return { code: 200, ...(await page(accept)) };
    } catch (error) {
      return { code: 500, type: TEXT, body: `${String(error)}\n` };
    }
  };
  return (request, response) => {
    const path = request.url?.split('?')[0] ?? '';
    void answer(path, request.headers.accept).then(({ code, type, body }) => {
      const headers = { 'content-type': type, 'x-content-type-options': 'nosniff' };
      response.writeHead(code, headers).end(body);
    });
  };
}
