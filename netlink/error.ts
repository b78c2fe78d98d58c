import { constants } from 'node:os';

/** What the kernel adds to an error number when NETLINK_EXT_ACK is set. */
export interface ExtendedAck {
  /** The kernel's own words; undefined when it has none. */
  readonly message: string | undefined;
  /** Byte offset of the offending attribute from the start of the message that was sent. */
  readonly offset: number | undefined;
}

/** A netlink operation that failed, in the kernel or on the way to it. */
export class NetlinkError extends Error {
  override readonly name = 'NetlinkError';
  /** Positive, as in errno.h. */
  readonly errno: number;
  /** Its name, such as `ENOENT`. */
  readonly code: string;
  readonly extendedAck: ExtendedAck | undefined;

  /** @param operation What was attempted, as the subject of the message: `bind`, `dump of type 22`. */
  constructor(operation: string, errno: number, extendedAck?: ExtendedAck, options?: ErrorOptions) {
    const code = errnoName(errno);
    const words = extendedAck?.message;
    super(
      words === undefined ? `${operation}: ${code}` : `${operation}: ${code} (${words})`,
      options,
    );
    this.errno = errno;
    this.code = code;
    this.extendedAck = extendedAck;
  }
}

/** Bytes from the kernel that do not hold what their lengths promise. */
export class MalformedMessage extends Error {
  override readonly name = 'MalformedMessage';
}

/** Numbers of this machine (they differ between architectures); always present on Linux. */
export const {
  EAGAIN,
  ECANCELED,
  EINTR,
  EINVAL,
  EMSGSIZE,
  ENOBUFS,
  ENOENT,
  EOPNOTSUPP,
  ETIMEDOUT,
} = constants.errno;

/** Second names for the same number: the kernel's sources use the other one. */
const aliases = new Set(['EWOULDBLOCK', 'ENOTSUP']);

const names = new Map<number, string>([
  // Kernel-internal, or unknown to Node; nf_tables (stale generation) and generic netlink send them.
  [85, 'ERESTART'],
  [524, 'ENOTSUPP'],
]);
for (const [name, number] of Object.entries(constants.errno)) {
  if (!aliases.has(name)) names.set(number, name);
}

function errnoName(errno: number): string {
  return names.get(errno) ?? `errno ${errno}`;
}
