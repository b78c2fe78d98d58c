/** Dumps and deletes conntrack entries of the kernel. */
import type { IpFamily, Protocol } from '../../api/objects.ts';
import { type RefusedItem, sendAll } from '../core/batches.ts';
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import { EINVAL, ENOENT, EOPNOTSUPP, hasErrno } from '../core/error.ts';
import { NFNL_SUBSYS_CTNETLINK } from '../core/nfnetlink.ts';
import { protocolNumbers } from '../core/protocol.ts';
import { withSocket } from '../core/socket.ts';
import {
  type ConntrackEntry,
  type DetailedEntry,
  deletePayload,
  dumpPayload,
  type EntryFilter,
  entryReader,
  IPS_DST_NAT,
} from './entry.ts';
import { EntryReader } from './entry-reader.ts';

export type { ConntrackEntry, DetailedEntry } from './entry.ts';

export interface ConntrackQuery {
  readonly family: IpFamily;
  /** Default: all protocols. */
  readonly protocol?: Protocol;
  /** Original destination address, canonical text. */
  readonly origDst?: string;
  /** true: only entries whose destination is translated (IPS_DST_NAT). Default: all. */
  readonly translatedOnly?: boolean;
  /** true: only entries that are neither translated nor answered. Default: all. */
  readonly unansweredOnly?: boolean;
  /** Selects among the matching entries. May be called more than once for an entry. */
  readonly keep?: (entry: ConntrackEntry) => boolean;
  /**
   * Whether the kernel filters. false: this process filters a dump of all entries, as on kernels
   * before 5.8.
   */
  readonly kernelFilter?: boolean;
}

/** Some conntrack entries could not be deleted; all others were. */
class ConntrackDeleteError extends AggregateError {
  override readonly name = 'ConntrackDeleteError';

  constructor(failures: readonly RefusedItem<ConntrackEntry>[]) {
    const errors = failures.map(({ error }) => error);
    super(
      errors,
      `cannot delete ${errors.length} conntrack entries; first error: ${errors[0]?.message}`,
      {
        cause: errors[0],
      },
    );
  }
}

/** linux/netfilter/nfnetlink_conntrack.h */
const IPCTNL_MSG_CT_GET = NFNL_SUBSYS_CTNETLINK | 1;
const IPCTNL_MSG_CT_DELETE = NFNL_SUBSYS_CTNETLINK | 2;

/**
 * Dumps the conntrack entries that match a query. The kernel filters by protocol and destination
 * from Linux 5.8 on. Older kernels ignore the filter, so this process checks every entry again.
 * Entries that are created or deleted during the dump may be missing or duplicated.
 * @throws NetlinkError; RangeError for a destination of the other family; whatever `keep` throws.
 */
export async function dumpConntrack(query: ConntrackQuery): Promise<ConntrackEntry[]> {
  const { keep } = query;
  const filter = entryFilter(query);
  const read = entryReader(filter);
  return await dumpFiltered(filter, query.kernelFilter ?? true, (payload) => {
    const entry = read(payload);
    return entry === undefined || keep?.(entry) === false ? undefined : entry;
  });
}

/**
 * Visits the entries of both families, with counters and states. An entry is valid only during the call of `visit`, so that a
 * table of a million entries needs no memory here. One dump of both families: each walks the whole hash table, which takes
 * 10 ms for 262,144 buckets without an entry.
 * @throws as `dumpConntrack`, and whatever `visit` throws.
 */
export async function visitConntrack(
  query: Pick<ConntrackQuery, 'translatedOnly'>,
  visit: (entry: DetailedEntry) => void,
): Promise<void> {
  const reader = new EntryReader();
  await dumpFiltered(query, true, (payload) => {
    const entry = reader.read(payload, 0, payload.length);
    if (entry !== undefined && isTranslated(entry, query)) visit(entry);
    return undefined;
  });
}

/** The kernel filters from Linux 5.15 on. */
function isTranslated(
  { status }: ConntrackEntry,
  { translatedOnly }: Pick<ConntrackQuery, 'translatedOnly'>,
): boolean {
  return translatedOnly !== true || (status & IPS_DST_NAT) !== 0;
}

function entryFilter(query: ConntrackQuery): EntryFilter {
  const { family, protocol, origDst, translatedOnly, unansweredOnly } = query;
  const number = protocol === undefined ? undefined : protocolNumbers[protocol];
  return { family, protocol: number, origDst, translatedOnly, unansweredOnly };
}

/** @param pick converts the payload of an entry to a result; undefined omits it. */
async function dumpFiltered<T>(
  filter: Partial<EntryFilter>,
  kernelFilter: boolean,
  pick: (payload: Buffer) => T | undefined,
): Promise<T[]> {
  return await withSocket(NETLINK_NETFILTER, async (socket) => {
    const dump = (payload: Buffer) =>
      socket.dump({ type: IPCTNL_MSG_CT_GET, payload }, (message) =>
        message.type === NFNL_SUBSYS_CTNETLINK ? pick(message.payload) : undefined,
      );
    const unfiltered = dumpPayload(filter, false);
    const payload = kernelFilter ? dumpPayload(filter, true) : unfiltered;
    return await dump(payload).catch((error: unknown) => {
      // The kernel supports dump filters but rejects this filter, so dump without a filter.
      if (payload.equals(unfiltered) || !hasErrno(error, EINVAL, EOPNOTSUPP)) throw error;
      return dump(unfiltered);
    });
  });
}

/**
 * Deletes dumped conntrack entries. Skips an entry that no longer exists, and a new entry with the
 * same tuple but another ID.
 * @returns the number of entries deleted.
 * @throws ConntrackDeleteError after all entries were tried; NetlinkError if replies were lost.
 */
export async function deleteConntrack(entries: readonly ConntrackEntry[]): Promise<number> {
  if (entries.length === 0) return 0;
  const refused = await withSocket(NETLINK_NETFILTER, (socket) =>
    sendAll(socket, entries, (entry) => {
      return { type: IPCTNL_MSG_CT_DELETE, payload: deletePayload(entry) };
    }),
  );
  const failures = refused.filter(({ error }) => error.errno !== ENOENT);
  if (failures.length > 0) throw new ConntrackDeleteError(failures);
  return entries.length - refused.length;
}
