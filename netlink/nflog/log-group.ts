/** Receives packets that rules log to a group (NFLOG, linux/netfilter/nfnetlink_log.h). */
import { type Attribute, encodeAttributes, walkAttributes } from '../core/attribute.ts';
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import type { NetlinkMessage } from '../core/message.ts';
import { encodeNumber } from '../core/network-order.ts';
import { NFGENMSG_LENGTH, NFNL_SUBSYS_ULOG, nfgenmsg } from '../core/nfnetlink.ts';
import { NotificationSocket } from '../core/notifications.ts';
import { readText } from '../core/text.ts';

/** A logged packet. */
export interface LoggedPacket {
  /** The prefix of the rule; empty without one. */
  readonly prefix: string;
  /** The packet from the IP header on, cut. A view of the receive buffer, valid only during the callback. */
  readonly bytes: Buffer;
}

const NFULNL_MSG_PACKET = NFNL_SUBSYS_ULOG | 0;
const NFULNL_MSG_CONFIG = NFNL_SUBSYS_ULOG | 1;
const NFULA_CFG_CMD = 1;
const NFULA_CFG_MODE = 2;
const NFULA_CFG_TIMEOUT = 4;
const NFULA_CFG_QTHRESH = 5;
const NFULNL_CFG_CMD_BIND = 1;
const NFULNL_COPY_PACKET = 2;
const NFULA_PAYLOAD = 9;
const NFULA_PREFIX = 10;
/** Bytes of each packet: IPv6 header, extension headers and ports. */
const COPY_RANGE = 128;
/** The kernel sends after so many packets or hundredths of a second. */
const BATCH_PACKETS = 16;
const BATCH_CENTISECONDS = 5;
const RECEIVE_BUFFER = 1 << 20;

/** A group in the network namespace of this thread. One socket of a namespace can receive a group. */
export class LogGroup {
  readonly #socket: NotificationSocket;

  /**
   * Binds a group.
   * @throws NetlinkError: EPERM if another program receives the group; EINVAL if the kernel has no NFLOG.
   */
  constructor(group: number) {
    this.#socket = new NotificationSocket(NETLINK_NETFILTER, {
      groups: [],
      receiveBuffer: RECEIVE_BUFFER,
    });
    const configure = (attributes: readonly Attribute[]) =>
      this.#socket.configure(`bind NFLOG group ${group}`, {
        type: NFULNL_MSG_CONFIG,
        payload: encodeAttributes(attributes, nfgenmsg(0, group)),
      });
    try {
      configure([
        { type: NFULA_CFG_CMD, value: encodeNumber(NFULNL_CFG_CMD_BIND, 1) },
        {
          type: NFULA_CFG_MODE,
          value: Buffer.concat([
            encodeNumber(COPY_RANGE, 4),
            encodeNumber(NFULNL_COPY_PACKET, 1),
            encodeNumber(0, 1),
          ]),
        },
        { type: NFULA_CFG_TIMEOUT, value: encodeNumber(BATCH_CENTISECONDS, 4) },
        { type: NFULA_CFG_QTHRESH, value: encodeNumber(BATCH_PACKETS, 4) },
      ]);
    } catch (error) {
      this.#socket.close();
      throw error;
    }
  }

  /** Number of datagrams that did not fit into the receive buffer. */
  get dropped(): number {
    return this.#socket.dropped;
  }

  /**
   * Reads waiting packets, for at most 8 ms.
   * @returns whether packets may be left.
   * @throws NetlinkError; MalformedMessage; whatever `onPacket` throws.
   */
  read(onPacket: (packet: LoggedPacket) => void): boolean {
    return this.#socket.read((message) => {
      if (message.type === NFULNL_MSG_PACKET) onPacket(readPacket(message));
    });
  }

  /** Releases the group. */
  close(): void {
    this.#socket.close();
  }
}

function readPacket({ payload }: NetlinkMessage): LoggedPacket {
  let prefix = '';
  let bytes = payload.subarray(0, 0);
  walkAttributes(payload, NFGENMSG_LENGTH, payload.length, (type, start, end) => {
    if (type === NFULA_PREFIX) prefix = readText(payload, start, end);
    else if (type === NFULA_PAYLOAD) bytes = payload.subarray(start, end);
  });
  return { prefix, bytes };
}
