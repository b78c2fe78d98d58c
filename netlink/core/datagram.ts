/** Receive buffers of netlink sockets, and the messages of a received datagram. */
import { EINTR, EMSGSIZE, NetlinkError } from './error.ts';
import { readU32 } from './host-order.ts';
import { type NetlinkMessage, NLMSG_PID_OFFSET, readMessages } from './message.ts';

/** Buffers for one receive call. */
export interface ReceiveBuffer {
  readonly bytes: Buffer;
  /** struct sockaddr_nl of the sender. */
  readonly sender: Buffer;
  readonly senderLength: Buffer;
}

/**
 * The kernel sends dumps in parts of at most 32 KiB. A single message can be larger, such as a link
 * with many SR-IOV VFs.
 */
const CAPACITY = 256 * 1024;

/** struct sockaddr_nl of linux/netlink.h: u16 family, u16 padding, u32 port ID, u32 groups. */
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
 * Reads the messages of a datagram, as views of the buffer. Returns none if the receive call was
 * interrupted or if a process sent the datagram instead of the kernel.
 * @param result Result of the receive call: the length of the datagram or a negative errno.
 * @throws NetlinkError, MalformedMessage
 */
export function readDatagram(
  operation: string,
  from: ReceiveBuffer,
  result: number,
): NetlinkMessage[] {
  if (result === -EINTR) return [];
  if (result < 0) throw new NetlinkError(operation, -result);
  // With MSG_TRUNC the result is the true length.
  if (result > CAPACITY)
    throw new NetlinkError(
      `${operation}: datagram of ${result} bytes, buffer of ${CAPACITY} bytes`,
      EMSGSIZE,
    );
  // Other processes may also send to this socket. The port ID of the kernel is 0.
  if (!isFromKernel(from.sender, 0)) return [];
  return readMessages(from.bytes.subarray(0, result));
}

/** Whether the kernel sent a datagram, as opposed to another process. @param sender offset in `senders`. */
export function isFromKernel(senders: Buffer, sender: number): boolean {
  return readU32(senders, sender + SOCKADDR_NL_PORT_ID) === 0;
}

/**
 * The port ID of the socket whose request caused the first message (nlmsg_pid). Reads nothing else.
 */
export function firstPortId({ bytes }: ReceiveBuffer): number {
  return readU32(bytes, NLMSG_PID_OFFSET);
}
