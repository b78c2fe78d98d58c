import type { IpFamily, Protocol } from '../../api/objects.ts';
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import { EINVAL, ENOENT, EOPNOTSUPP, NetlinkError } from '../core/error.ts';
import type { Request } from '../core/message.ts';
import { protocolNumbers } from '../core/protocol.ts';
import { NetlinkSocket } from '../core/socket.ts';
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
export class ConntrackDeleteError extends AggregateError {
  override readonly name = 'ConntrackDeleteError';
  declare readonly errors: NetlinkError[];
  /** In the order of `errors`. */
  readonly entries: readonly ConntrackEntry[];
  /** How many flows were deleted all the same. */
  readonly deleted: number;

  constructor(failures: readonly Failure[], deleted: number) {
    const errors = failures.map(({ error }) => error);
    super(errors, `${errors.length} flows not deleted, the first: ${errors[0]?.message}`, {
      cause: errors[0],
    });
    this.entries = failures.map(({ entry }) => entry);
    this.deleted = deleted;
  }
}

interface Failure {
  readonly entry: ConntrackEntry;
  readonly error: NetlinkError;
}

/** linux/netfilter/nfnetlink.h, nfnetlink_conntrack.h: subsystem << 8 | message. */
const NFNL_SUBSYS_CTNETLINK = 1 << 8;
const IPCTNL_MSG_CT_GET = NFNL_SUBSYS_CTNETLINK | 1;
const IPCTNL_MSG_CT_DELETE = NFNL_SUBSYS_CTNETLINK | 2;

/** Messages of one send: some 50 KB, 3 ms of the kernel; all may fail without an overrun. */
const DELETE_BATCH = 500;

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
  const socket = new NetlinkSocket(NETLINK_NETFILTER);

  const dump = (payload: Buffer) =>
    socket.dump({ type: IPCTNL_MSG_CT_GET, payload }, (message) => {
      if (message.type !== NFNL_SUBSYS_CTNETLINK) return undefined;
      const entry = read(message.payload);
      return entry === undefined || keep?.(entry) === false ? undefined : entry;
    });

  try {
    const unfiltered = dumpPayload(filter, false);
    const payload = kernelFilter ? dumpPayload(filter, true) : unfiltered;
    return await dump(payload).catch((error: unknown) => {
      // A kernel that knows filters but not this one.
      if (payload.equals(unfiltered) || !isUnsupported(error)) throw error;
      return dump(unfiltered);
    });
  } finally {
    await socket.close();
  }
}

/**
 * Deletes flows, each only as long as it is the very one that was dumped. Flows that are gone
 * are no error.
 * @returns how many there still were.
 * @throws ConntrackDeleteError after all were tried; NetlinkError when the kernel's answers were lost.
 */
export async function deleteConntrack(entries: readonly ConntrackEntry[]): Promise<number> {
  if (entries.length === 0) return 0;
  const socket = new NetlinkSocket(NETLINK_NETFILTER);
  const failures: Failure[] = [];
  let deleted = 0;
  try {
    for (let start = 0; start < entries.length; start += DELETE_BATCH) {
      const batch = entries.slice(start, start + DELETE_BATCH);
      const refusals = await socket.batch(batch.map(deletion));
      deleted += batch.length - refusals.length;
      for (const { index, error } of refusals) {
        const entry = batch[index];
        if (entry !== undefined && error.errno !== ENOENT) failures.push({ entry, error });
      }
    }
  } finally {
    await socket.close();
  }
  if (failures.length > 0) throw new ConntrackDeleteError(failures, deleted);
  return deleted;
}

function deletion(entry: ConntrackEntry): Request {
  return { type: IPCTNL_MSG_CT_DELETE, payload: deletePayload(entry) };
}

function isUnsupported(error: unknown): boolean {
  return error instanceof NetlinkError && (error.errno === EINVAL || error.errno === EOPNOTSUPP);
}
