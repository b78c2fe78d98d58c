/** Pages of lists. Pure. */
import type { Page } from '../api/common.ts';
import { integer, parsed } from './parameters.ts';

/** Items of a page whose request sets no limit. */
export const DEFAULT_LIMIT = 500;
/** Most items of a page. */
export const MAX_LIMIT = 1000;

/** Position and size of a page. */
export interface PageRequest {
  readonly limit: number | undefined;
  readonly continue: number | undefined;
}

/** The parameters of every list. */
export const PAGE_PARAMETERS = {
  limit: integer(1, MAX_LIMIT),
  continue: parsed('field "continue" of the previous page', (text) => {
    const offset = /^o(\d{1,9})$/.exec(text)?.[1];
    return offset === undefined ? undefined : Number(offset);
  }),
};

/**
 * Cuts one page out of a list. Items that appear or disappear between two requests may shift others to another page.
 */
export function pageOf<Item>(items: readonly Item[], request: PageRequest): Page<Item> {
  const from = request.continue ?? 0;
  const to = from + (request.limit ?? DEFAULT_LIMIT);
  return {
    items: items.slice(from, to),
    total: items.length,
    continue: to < items.length ? `o${to}` : null,
  };
}
