/**
 * Netlink errors: kernel error numbers with their names, missing kernel features, malformed
 * messages.
 */
import { constants } from 'node:os';

/** Details that the kernel adds to an error number if NETLINK_EXT_ACK is set. */
export interface ExtendedAck {
  /** Message text of the kernel, if any. */
  readonly message: string | undefined;
  /** Byte offset of the offending attribute from the start of the sent message. */
  readonly offset: number | undefined;
}

/**
 * A failed netlink operation: the kernel refused it, it did not reach the kernel, or its outcome is
 * unknown (ENOBUFS, ETIMEDOUT).
 */
export class NetlinkError extends Error {
  override readonly name = 'NetlinkError';
  /** Positive error number from errno.h, or of ipset (linux/netfilter/ipset/ip_set.h). */
  readonly errno: number;
  /** The name of the error number, such as `ENOENT` or `IPSET_ERR_HASH_FULL`. */
  readonly code: string;
  readonly extendedAck: ExtendedAck | undefined;
  /** The cause in words, of the kernel if it sent any. */
  readonly detail: string | undefined;

  /**
   * @param operation The failed operation, subject of the error message: `bind`, `netlink dump 22`.
   * @param options.detail The cause in words, if the kernel sent none.
   */
  constructor(
    operation: string,
    errno: number,
    extendedAck?: ExtendedAck,
    { detail, ...options }: ErrorOptions & { readonly detail?: string | undefined } = {},
  ) {
    const code = errnoName(errno);
    const text = extendedAck?.message ?? detail;
    super(
      text === undefined ? `${operation}: ${code}` : `${operation}: ${code} (${text})`,
      options,
    );
    this.errno = errno;
    this.code = code;
    this.extendedAck = extendedAck;
    this.detail = text;
  }
}

export function hasErrno(error: unknown, ...errnos: readonly number[]): boolean {
  return error instanceof NetlinkError && errnos.includes(error.errno);
}

/**
 * Copies an error with a more specific operation, such as `ipset destroy NAME` instead of the
 * number of a message type.
 */
export function relabelError(operation: string, cause: NetlinkError): NetlinkError {
  const { errno, extendedAck, detail } = cause;
  return new NetlinkError(operation, errno, extendedAck, { cause, detail });
}

/** Replaces the operation if `work` rejects with a NetlinkError, as `relabelError` does. */
export async function labelErrors<T>(operation: string, work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw error instanceof NetlinkError ? relabelError(operation, error) : error;
  }
}

/** Resolves to undefined if `work` rejects with this error number, such as ENOENT. */
export async function undefinedOnErrno<T>(work: Promise<T>, errno: number): Promise<T | undefined> {
  try {
    return await work;
  } catch (error) {
    if (hasErrno(error, errno)) return undefined;
    throw error;
  }
}

/**
 * A message from the kernel that cannot be decoded: a length is wrong, an attribute is missing, or
 * a value is unknown.
 */
export class MalformedMessage extends Error {
  override readonly name = 'MalformedMessage';
}

/** The kernel lacks a feature and cannot load a module that provides it. */
export class UnsupportedError extends Error {
  override readonly name = 'UnsupportedError';
  /** The missing feature, for example `ipset`. */
  readonly feature: string;

  constructor(feature: string, options?: ErrorOptions) {
    super(`the kernel has no ${feature}`, options);
    this.feature = feature;
  }
}

/**
 * Converts an error with one of the given error numbers to an UnsupportedError.
 * @returns the error to throw.
 */
export function toUnsupportedError(feature: string, error: unknown, ...errnos: number[]): unknown {
  return hasErrno(error, ...errnos) ? new UnsupportedError(feature, { cause: error }) : error;
}

/**
 * Error numbers of this architecture (they differ between architectures). Always defined on Linux.
 */
export const {
  EADDRNOTAVAIL,
  EAFNOSUPPORT,
  EAGAIN,
  EBADMSG,
  ECANCELED,
  EEXIST,
  EINTR,
  EINVAL,
  EMLINK,
  EMSGSIZE,
  ENOBUFS,
  ENODEV,
  ENOENT,
  ENXIO,
  EOPNOTSUPP,
  EPERM,
  EPROTONOSUPPORT,
  ESRCH,
  ETIMEDOUT,
} = constants.errno;

/** The kernel has no nfnetlink, or nfnetlink does not know the subsystem (nfnetlink_rcv_msg). */
export const NO_SUBSYSTEM_ERRNOS = [EPROTONOSUPPORT, EINVAL] as const;

/** The kernel lacks the type of the ipset or the requested revision. */
export const IPSET_ERR_FIND_TYPE = 4098;

/** Names that the kernel sources do not use: aliases of EAGAIN and EOPNOTSUPP. */
const aliases = new Set(['EWOULDBLOCK', 'ENOTSUP']);

const names = new Map<number, string>([
  // Error numbers that are internal to the kernel or that Node lacks. nf_tables (stale generation)
  // and generic netlink return them.
  [85, 'ERESTART'],
  [524, 'ENOTSUPP'],
]);
/**
 * ipset error numbers, above MAX_ERRNO (4095). The meaning of a number from 4352 on depends on the
 * type of the set. The names below are the names for hash types (ip_set_hash.h). Bitmap types use
 * 4352 and 4353 for values out of range, which a bitmap of all ports cannot have. list:set gives
 * the numbers other meanings.
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
