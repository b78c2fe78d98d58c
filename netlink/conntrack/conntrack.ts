/** Connection tracking of the kernel: finding and deleting flows. */
import type { IpFamily, Protocol } from '../../api/objects.ts';
import { type RefusedItem, sendAll } from '../core/batches.ts';
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import { EINVAL, ENOENT, EOPNOTSUPP, hasErrno } from '../core/error.ts';
import { NFNL_SUBSYS_CTNETLINK } from '../core/nfnetlink.ts';
import { protocolNumbers } from '../core/protocol.ts';
import { withSocket } from '../core/socket.ts';
import {
  type ConntrackEntry,
  deletePayload,
  dumpPayload,
  type EntryFilter,
  entryReader,
} from './entry.ts';

export type { ConntrackEntry } from './entry.ts';

export interface ConntrackQuery {
  readonly family: IpFamily;
  /** Default: every protocol. */
  readonly protocol?: Protocol;
  /** Canonical text of the destination that the first packet had. */
  readonly origDst?: string;
  /** Of the entries that fit so far, which to return; may be asked about an entry more than once. */
  readonly keep?: (entry: ConntrackEntry) => boolean;
  /** false: all entries come to this process and are filtered here, as on kernels before 5.8. */
  readonly kernelFilter?: boolean;
}

/** Some flows could not be deleted; all others are. */
class ConntrackDeleteError extends AggregateError {
  override readonly name = 'ConntrackDeleteError';

  constructor(failures: readonly RefusedItem<ConntrackEntry>[]) {
    const errors = failures.map(({ error }) => error);
    super(errors, `${errors.length} flows not deleted, the first: ${errors[0]?.message}`, {
      cause: errors[0],
    });
  }
}

/** linux/netfilter/nfnetlink_conntrack.h */
const IPCTNL_MSG_CT_GET = NFNL_SUBSYS_CTNETLINK | 1;
const IPCTNL_MSG_CT_DELETE = NFNL_SUBSYS_CTNETLINK | 2;

/**
 * The flows that fit a query. The kernel filters by protocol and destination if it can (5.8 and
 * later), and what it sends is checked here again, since older kernels ignore that they are asked.
 * Flows that come or go meanwhile may be missing, or be there twice.
 * @throws NetlinkError; RangeError for a destination of the other family; what `keep` throws.
 */
export async function dumpConntrack(query: ConntrackQuery): Promise<ConntrackEntry[]> {
  const { family, origDst, keep, kernelFilter = true } = query;
  const protocol = query.protocol === undefined ? undefined : protocolNumbers[query.protocol];
  const filter: EntryFilter = { family, protocol, origDst };
  const read = entryReader(filter);
  return await withSocket(NETLINK_NETFILTER, async (socket) => {
    const dump = (payload: Buffer) =>
      socket.dump({ type: IPCTNL_MSG_CT_GET, payload }, (message) => {
        if (message.type !== NFNL_SUBSYS_CTNETLINK) return undefined;
        const entry = read(message.payload);
        return entry === undefined || keep?.(entry) === false ? undefined : entry;
      });
    const unfiltered = dumpPayload(filter, false);
    const payload = kernelFilter ? dumpPayload(filter, true) : unfiltered;
    return await dump(payload).catch((error: unknown) => {
      // A kernel that knows filters but not this one.
      if (payload.equals(unfiltered) || !hasErrno(error, EINVAL, EOPNOTSUPP)) throw error;
      return dump(unfiltered);
    });
  });
}

/**
 * Deletes flows, each only as long as it is the very one that was dumped. Flows that are gone
 * are no error.
 * @returns how many there still were.
 * @throws ConntrackDeleteError after all were tried; NetlinkError when the kernel's answers were lost.
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
