/** One receive of a netlink socket: where it puts what came, and the messages in it. */
import { EINTR, EMSGSIZE, NetlinkError } from './error.ts';
import { readU32 } from './host-order.ts';
import { type NetlinkMessage, NLMSG_PID_OFFSET, readMessages } from './message.ts';

/** Where a receive puts what came. */
export interface ReceiveBuffer {
  readonly bytes: Buffer;
  /** struct sockaddr_nl of the sender. */
  readonly sender: Buffer;
  readonly senderLength: Buffer;
}

/** Dumps come in pieces of at most 32 KiB; a single message (a link with many VFs) may be bigger. */
const CAPACITY = 256 * 1024;

/** struct sockaddr_nl of linux/netlink.h: u16 family, u16 padding, u32 port, u32 groups. */
export const SOCKADDR_NL_LENGTH = 12;
export const SOCKADDR_NL_PORT_ID = 4;

export function newReceiveBuffer(): ReceiveBuffer {
  return {
    bytes: Buffer.allocUnsafeSlow(CAPACITY),
    sender: Buffer.alloc(SOCKADDR_NL_LENGTH),
    senderLength: Buffer.alloc(4),
  };
}

/**
 * The messages that a receive brought, as views; none when it was interrupted.
 * @param result Of the receive: the length of what came, or a negative errno.
 * @throws NetlinkError, MalformedMessage
 */
export function readDatagram(
  operation: string,
  from: ReceiveBuffer,
  result: number,
): NetlinkMessage[] {
  if (result === -EINTR) return [];
  if (result < 0) throw new NetlinkError(operation, -result);
  // MSG_TRUNC gives the true length.
  if (result > CAPACITY) throw new NetlinkError(`${operation}: ${result} bytes`, EMSGSIZE);
  // Other processes may send to this port, too; the kernel's own is 0.
  if (readU32(from.sender, SOCKADDR_NL_PORT_ID) !== 0) return [];
  return readMessages(from.bytes.subarray(0, result));
}

/** The port whose request caused the first message (nlmsg_pid), without reading more. */
export function firstPortId({ bytes }: ReceiveBuffer): number {
  return readU32(bytes, NLMSG_PID_OFFSET);
}
