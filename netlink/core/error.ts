/** What can go wrong: errors of the kernel with their names, what it lacks, and messages that cannot be read. */
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
  /** Positive, as in errno.h; ipset has more (linux/netfilter/ipset/ip_set.h). */
  readonly errno: number;
  /** Its name, such as `ENOENT` or `IPSET_ERR_HASH_FULL`. */
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

export function hasErrno(error: unknown, ...errnos: readonly number[]): boolean {
  return error instanceof NetlinkError && errnos.includes(error.errno);
}

/** The same error of an operation that tells more than the number of a message. */
export function relabelError(operation: string, cause: NetlinkError): NetlinkError {
  return new NetlinkError(operation, cause.errno, cause.extendedAck, { cause });
}

/** Gives errors of the kernel the name of an operation, as `renamed` does. */
export async function labelErrors<T>(operation: string, work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw error instanceof NetlinkError ? relabelError(operation, error) : error;
  }
}

/** @returns undefined when the kernel says by this number that there is no such thing. */
export async function undefinedOnErrno<T>(work: Promise<T>, errno: number): Promise<T | undefined> {
  try {
    return await work;
  } catch (error) {
    if (hasErrno(error, errno)) return undefined;
    throw error;
  }
}

/** Bytes from the kernel that do not hold what their lengths promise. */
export class MalformedMessage extends Error {
  override readonly name = 'MalformedMessage';
}

/** The kernel lacks a feature, and no module that has it can be loaded. */
export class UnsupportedError extends Error {
  override readonly name = 'UnsupportedError';
  /** Such as `ipset`. */
  readonly feature: string;

  constructor(feature: string, options?: ErrorOptions) {
    super(`the kernel has no ${feature}`, options);
    this.feature = feature;
  }
}

/** What to throw for an error: UnsupportedError if it is one of the numbers by which the kernel says so. */
export function orUnsupported(feature: string, error: unknown, ...errnos: number[]): unknown {
  return hasErrno(error, ...errnos) ? new UnsupportedError(feature, { cause: error }) : error;
}

/** Numbers of this machine (they differ between architectures); always present on Linux. */
export const {
  EADDRNOTAVAIL,
  EAFNOSUPPORT,
  EAGAIN,
  ECANCELED,
  EEXIST,
  EINTR,
  EINVAL,
  EMSGSIZE,
  ENODEV,
  ENOENT,
  ENXIO,
  EOPNOTSUPP,
  EPROTONOSUPPORT,
  ESRCH,
  ETIMEDOUT,
} = constants.errno;

/** The kernel has no nfnetlink, or that does not know the subsystem (nfnetlink_rcv_msg). */
export const NO_SUBSYSTEM_ERRNOS = [EPROTONOSUPPORT, EINVAL] as const;

/** ipset: the kernel lacks the type of set, or this revision of it. */
export const IPSET_ERR_FIND_TYPE = 4098;

/** Second names for the same number: the kernel's sources use the other one. */
const aliases = new Set(['EWOULDBLOCK', 'ENOTSUP']);

const names = new Map<number, string>([
  // Kernel-internal, or unknown to Node; nf_tables (stale generation) and generic netlink send them.
  [85, 'ERESTART'],
  [524, 'ENOTSUPP'],
]);
/**
 * Numbers beyond MAX_ERRNO (4095) are ipset's own. Those from 4352 on depend on the type of the set:
 * these are the hash types' (ip_set_hash.h). The others use them for ranges outside of a set, which
 * a bitmap of all ports does not have, and for lists of sets.
 */
const ipsetErrors: readonly [first: number, names: readonly string[]][] = [
  [
    4097,
    [
      'PROTOCOL',
      'FIND_TYPE',
      'MAX_SETS',
      'BUSY',
      'EXIST_SETNAME2',
      'TYPE_MISMATCH',
      'EXIST',
      'INVALID_CIDR',
      'INVALID_NETMASK',
      'INVALID_FAMILY',
      'TIMEOUT',
      'REFERENCED',
      'IPADDR_IPV4',
      'IPADDR_IPV6',
      'COUNTER',
      'COMMENT',
      'INVALID_MARKMASK',
      'SKBINFO',
      'BITMASK_NETMASK_EXCL',
    ],
  ],
  [
    4352,
    [
      'HASH_FULL',
      'HASH_ELEM',
      'INVALID_PROTO',
      'MISSING_PROTO',
      'HASH_RANGE_UNSUPPORTED',
      'HASH_RANGE',
    ],
  ],
];
for (const [first, list] of ipsetErrors) {
  for (const [index, name] of list.entries()) names.set(first + index, `IPSET_ERR_${name}`);
}

for (const [name, number] of Object.entries(constants.errno)) {
  if (!aliases.has(name)) names.set(number, name);
}

function errnoName(errno: number): string {
  return names.get(errno) ?? `errno ${errno}`;
}
