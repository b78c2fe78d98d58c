/** Receives packets that rules log to a group (NFLOG, linux/netfilter/nfnetlink_log.h). */
import { CTA_TUPLE_ORIG, CTA_ZONE } from '../conntrack/entry.ts';
import { emptyTuple, readTuple } from '../conntrack/tuple.ts';
import { addressFormatter } from '../core/address.ts';
import { type Attribute, encodeAttributes, walkAttributes } from '../core/attribute.ts';
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import { NetlinkError } from '../core/error.ts';
import type { NetlinkMessage } from '../core/message.ts';
import { encodeNumber, readNumber, readU64 } from '../core/network-order.ts';
import { NFGENMSG_LENGTH, NFNL_SUBSYS_ULOG, nfgenmsg } from '../core/nfnetlink.ts';
import { NotificationSocket } from '../core/notifications.ts';
import { readText } from '../core/text.ts';

/** A logged packet. */
export interface LoggedPacket {
  /** The prefix of the rule; empty without one. */
  readonly prefix: string;
  /** The packet from the IP header on, cut. A view of the receive buffer, valid only during the callback. */
  readonly bytes: Buffer;
  /**
   * The destination that the client used, from the conntrack entry of the packet. undefined for replies, without an entry,
   * in zones of other programs, and where the kernel does not send entries with packets.
   */
  readonly original: OriginalDestination | undefined;
  /** When the packet came, milliseconds since 1970; undefined if the kernel does not tell, as for packets of this node. */
  readonly receivedAt?: number | undefined;
}

/** The destination of a packet before its translation. */
export interface OriginalDestination {
  /** Canonical text. */
  readonly address: string;
  readonly port: number;
}

const NFULNL_MSG_PACKET = NFNL_SUBSYS_ULOG | 0;
const NFULNL_MSG_CONFIG = NFNL_SUBSYS_ULOG | 1;
const NFULA_CFG_CMD = 1;
const NFULA_CFG_MODE = 2;
const NFULA_CFG_TIMEOUT = 4;
const NFULA_CFG_QTHRESH = 5;
const NFULA_CFG_FLAGS = 6;
const NFULNL_CFG_F_CONNTRACK = 4;
const NFULNL_CFG_CMD_BIND = 1;
const NFULNL_COPY_PACKET = 2;
const NFULA_TIMESTAMP = 3;
const NFULA_PAYLOAD = 9;
const NFULA_PREFIX = 10;
const NFULA_CT = 18;
const NFULA_CT_INFO = 19;
/** `enum ip_conntrack_info` of linux/netfilter/nf_conntrack_common.h: values from here on are replies. */
const IP_CT_IS_REPLY = 3;
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
   * @param options.conntrack whether packets come with `original`.
   * @throws NetlinkError: EPERM if another program receives the group; EINVAL if the kernel has no NFLOG.
   */
  constructor(group: number, { conntrack = false }: { readonly conntrack?: boolean } = {}) {
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
    if (!conntrack) return;
    try {
      configure([{ type: NFULA_CFG_FLAGS, value: encodeNumber(NFULNL_CFG_F_CONNTRACK, 2) }]);
    } catch (error) {
      // Kernels without CONFIG_NETFILTER_NETLINK_GLUE_CT: packets come without entries.
      if (!(error instanceof NetlinkError)) throw error;
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
  let original: OriginalDestination | undefined;
  let receivedAt: number | undefined;
  let isReply = false;
  walkAttributes(payload, NFGENMSG_LENGTH, payload.length, (type, start, end) => {
    if (type === NFULA_PREFIX) prefix = readText(payload, start, end);
    else if (type === NFULA_PAYLOAD) bytes = payload.subarray(start, end);
    else if (type === NFULA_TIMESTAMP) receivedAt = readTime(payload, start, end);
    else if (type === NFULA_CT) original = readOriginal(payload, start, end);
    else if (type === NFULA_CT_INFO) isReply = readNumber(payload, start, end, 4) >= IP_CT_IS_REPLY;
  });
  return { prefix, bytes, original: isReply ? undefined : original, receivedAt };
}

/** struct nfulnl_msg_packet_timestamp: seconds and microseconds. */
function readTime(bytes: Buffer, start: number, end: number): number {
  return readU64(bytes, start, end) * 1000 + readU64(bytes, start + 8, end) / 1000;
}

function readOriginal(payload: Buffer, from: number, to: number): OriginalDestination | undefined {
  const tuple = emptyTuple();
  let zone = 0;
  walkAttributes(payload, from, to, (type, start, end) => {
    if (type === CTA_TUPLE_ORIG) readTuple(payload, start, end, tuple);
    else if (type === CTA_ZONE) zone = readNumber(payload, start, end, 2);
  });
  const { dstStart, dstEnd, dstPort, zone: ownZone } = tuple;
  if (dstEnd === 0 || zone !== 0 || ownZone !== 0) return undefined;
  return { address: addressFormatter()(payload, dstStart, dstEnd), port: dstPort };
}
