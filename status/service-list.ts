/** `GET /api/v1/services`: filters, orders and pages of Services. */
import { compareText } from '../api/collections.ts';
import type { ObjectKey } from '../api/objects.ts';
import type { InspectedService } from '../proxier/route-table.ts';
import { BackgroundSlice } from '../sync/precedence.ts';
import type { Page } from './api/common.ts';
import type { ServiceState, ServiceSummary } from './api/services.ts';
import { type PageRequest, pageOf } from './http/paging.ts';
import { integer, oneOf, parsed, type Values } from './http/parameters.ts';
import type { StatusSources } from './sources.ts';
import type { SummaryCache } from './summary-cache.ts';
import { serviceSummary } from './views/services.ts';

/** Longest search text, in characters. */
const MAX_SEARCH = 100;

/** Services that clients cannot use come first. */
const PROBLEM_ORDER: readonly ServiceSummary['state'][] = [
  'refused',
  'partlyRefused',
  'noEndpoints',
  'partial',
  'served',
  'ignored',
];

const RANKS = new Map(PROBLEM_ORDER.map((state, rank) => [state, rank]));
const rankOf = ({ state }: ServiceSummary) => RANKS.get(state) ?? RANKS.size;

/** A pod with addresses of both families is one. */
function readyOf({ endpoints, familyEndpoints: both }: ServiceSummary): number {
  return both === null ? endpoints.ready : Math.max(both.IPv4.ready, both.IPv6.ready);
}

/** Services are in the order of their names before, and sorting is stable. */
const SORTS = {
  name: () => 0,
  problems: (a: ServiceSummary, b: ServiceSummary) => rankOf(a) - rankOf(b),
  age: (a: ServiceSummary, b: ServiceSummary) => compareText(a.created ?? '', b.created ?? ''),
  endpoints: (a: ServiceSummary, b: ServiceSummary) => readyOf(b) - readyOf(a),
} as const;

/** Parameters in addition to the parameters of every list. */
export const SERVICE_LIST_PARAMETERS = {
  state: oneOf<ServiceState>(
    ...(['served', 'partial', 'noEndpoints', 'partlyRefused', 'refused', 'ignored'] as const),
  ),
  ports: oneOf<ServiceSummary['portKind']>('all', 'ranges', 'ports'),
  search: parsed(`text of at most ${MAX_SEARCH} characters`, (text) =>
    text.length <= MAX_SEARCH ? text.trim().toLowerCase() : undefined,
  ),
  sort: oneOf<keyof typeof SORTS>('name', 'problems', 'age', 'endpoints'),
  order: oneOf('ascending', 'descending'),
  /** Number of Services before the page, for clients that show a part of a long list. */
  offset: integer(0, 1_000_000),
};

interface Selection {
  readonly namespace: string | undefined;
  readonly service: ObjectKey | undefined;
}

interface Filter extends Selection, Values<typeof SERVICE_LIST_PARAMETERS>, PageRequest {
  readonly vip: string | undefined;
}

export async function listServices(
  sources: StatusSources,
  given: Filter,
  cache: SummaryCache,
): Promise<Page<ServiceSummary>> {
  const { table } = sources;
  const isDescending = given.order === 'descending';
  const page = { limit: given.limit, continue: given.continue ?? given.offset };
  if (isOrderOfKeys(given)) {
    // Summaries of 10,000 Services take 100 ms, and summaries of one page a few.
    const keys = selectedKeys(sources, given);
    if (isDescending) keys.reverse();
    const { items, ...rest } = pageOf(keys, page);
    const summaryOf = (each: InspectedService) => [serviceSummary(each, table.topology)];
    return { ...rest, items: await collectKeys(sources, items, summaryOf) };
  }
  const summaries = await collect(sources, given, (inspected) => {
    const summary = cache.summary(inspected, table.topology);
    return isSelected(summary, given) ? [summary] : [];
  });
  cache.prune(table);
  summaries.sort(SORTS[given.sort ?? 'name']);
  if (isDescending) summaries.reverse();
  return pageOf(summaries, page);
}

/** Whether the keys of the Services decide which ones the page has. */
function isOrderOfKeys({ state, ports, vip, search = '', sort = 'name' }: Filter): boolean {
  return (
    sort === 'name' &&
    search === '' &&
    state === undefined &&
    ports === undefined &&
    vip === undefined
  );
}

function isSelected(summary: ServiceSummary, { state, ports, vip, search = '' }: Filter): boolean {
  const { namespace, name, type, portKind } = summary;
  const vips = [...summary.vips, ...summary.refusedVips];
  return (
    (state ?? summary.state) === summary.state &&
    (ports ?? portKind) === portKind &&
    (vip === undefined || vips.includes(vip)) &&
    (search === '' ||
      [`${namespace}/${name}`, type, ...vips, ...summary.ports].some((text) =>
        text.toLowerCase().includes(search),
      ))
  );
}

/** Walks the Services that the parameters select, in order of their keys, and gives the event loop its turns. */
export async function collect<Item>(
  sources: Pick<StatusSources, 'table'>,
  given: Selection,
  itemsOf: (inspected: InspectedService) => readonly Item[],
): Promise<Item[]> {
  return await collectKeys(sources, selectedKeys(sources, given), itemsOf);
}

async function collectKeys<Item>(
  sources: Pick<StatusSources, 'table'>,
  keys: readonly ObjectKey[],
  itemsOf: (inspected: InspectedService) => readonly Item[],
): Promise<Item[]> {
  const slice = new BackgroundSlice();
  const items: Item[] = [];
  for (const key of keys) {
    // The Service may be gone after a yield.
    const inspected = sources.table.inspect(key);
    if (inspected !== undefined) items.push(...itemsOf(inspected));
    if (slice.isOver()) await slice.yield();
  }
  return items;
}

function selectedKeys(
  { table }: Pick<StatusSources, 'table'>,
  { namespace, service }: Selection,
): ObjectKey[] {
  const isSelectedKey = (key: ObjectKey) =>
    (service === undefined || key === service) &&
    (namespace === undefined || key.startsWith(`${namespace}/`));
  return [...table.serviceKeys].filter(isSelectedKey).sort(compareText);
}
