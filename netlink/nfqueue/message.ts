/** Encodes and decodes NFQUEUE messages (linux/netfilter/nfnetlink_queue.h). */
import { type Attribute, encodeAttributes, NLA_HDRLEN, walkAttributes } from '../core/attribute.ts';
import { MalformedMessage } from '../core/error.ts';
import { encodeMessages, type NetlinkMessage, NLM_F_ACK, NLMSG_HDRLEN } from '../core/message.ts';
import { encodeNumber, readNumber } from '../core/network-order.ts';
import { NFGENMSG_LENGTH, NFNL_SUBSYS_QUEUE, nfgenmsg } from '../core/nfnetlink.ts';

/** A packet that waits in a queue for a verdict. */
export interface QueuedPacket {
  /** Packet ID: the kernel numbers the packets of a queue. */
  readonly id: number;
  /**
   * Index of the input interface: the bridge port if known. 0 for a packet sent by the node itself.
   */
  readonly ifindex: number;
  /**
   * The packet from the IP header on. A view of the receive buffer, valid only during the callback.
   */
  readonly bytes: Buffer;
}

export const NFQNL_MSG_PACKET = NFNL_SUBSYS_QUEUE | 0;
const NFQNL_MSG_VERDICT = NFNL_SUBSYS_QUEUE | 1;
const NFQNL_MSG_CONFIG = NFNL_SUBSYS_QUEUE | 2;

const NFQA_CFG_CMD = 1;
const NFQA_CFG_PARAMS = 2;
const NFQA_CFG_QUEUE_MAXLEN = 3;
const NFQA_CFG_MASK = 4;
const NFQA_CFG_FLAGS = 5;
const NFQNL_CFG_CMD_BIND = 1;
const NFQNL_COPY_PACKET = 2;
const NFQA_CFG_F_FAIL_OPEN = 1;
/**
 * Bytes to copy of each packet. The kernel reduces this number by 4, because the length of an
 * attribute has 16 bits and includes its header.
 */
const COPY_RANGE = 0xffff;

const NFQA_PACKET_HDR = 1;
const NFQA_VERDICT_HDR = 2;
const NFQA_IFINDEX_INDEV = 5;
const NFQA_IFINDEX_PHYSINDEV = 7;
const NFQA_PAYLOAD = 10;
const NF_ACCEPT = 1;

/**
 * Binds a queue and requests an ack. One message sets all parameters: the kernel drops a packet
 * that arrives at a queue without a copy mode.
 * @param maxLength Maximum number of waiting packets. Further packets bypass the queue.
 */
export function bindMessage(queue: number, maxLength: number, sequence: number): Buffer {
  const attributes: Attribute[] = [
    // u8 command, u8 padding, u16 family. The kernel ignores the family since 3.8.
    { type: NFQA_CFG_CMD, value: Buffer.from([NFQNL_CFG_CMD_BIND, 0, 0, 0]) },
    {
      type: NFQA_CFG_PARAMS,
      value: Buffer.concat([encodeNumber(COPY_RANGE, 4), encodeNumber(NFQNL_COPY_PACKET, 1)]),
    },
    lengthAttribute(maxLength),
    { type: NFQA_CFG_MASK, value: encodeNumber(NFQA_CFG_F_FAIL_OPEN, 4) },
    { type: NFQA_CFG_FLAGS, value: encodeNumber(NFQA_CFG_F_FAIL_OPEN, 4) },
  ];
  return encode(NFQNL_MSG_CONFIG, NLM_F_ACK, queue, attributes, sequence);
}

/** Changes the maximum length of a bound queue. */
export function maxLengthMessage(queue: number, maxLength: number): Buffer {
  return encode(NFQNL_MSG_CONFIG, 0, queue, [lengthAttribute(maxLength)], 0);
}

function lengthAttribute(maxLength: number): Attribute {
  return { type: NFQA_CFG_QUEUE_MAXLEN, value: encodeNumber(maxLength, 4) };
}

const VERDICT_ID = NLMSG_HDRLEN + NFGENMSG_LENGTH + NLA_HDRLEN + 4;

/** A verdict that accepts a packet. Set the packet ID with `setPacketId` before sending. */
export function acceptMessage(queue: number): Buffer {
  const verdict = Buffer.concat([encodeNumber(NF_ACCEPT, 4), encodeNumber(0, 4)]);
  return encode(NFQNL_MSG_VERDICT, 0, queue, [{ type: NFQA_VERDICT_HDR, value: verdict }], 0);
}

export function setPacketId(message: Buffer, id: number): void {
  message.writeUInt32BE(id, VERDICT_ID);
}

/** Reads a queued packet. @throws MalformedMessage */
export function readPacket({ payload }: NetlinkMessage): QueuedPacket {
  let id: number | undefined;
  let device = 0;
  let port = 0;
  let bytes = payload.subarray(0, 0);
  walkAttributes(payload, NFGENMSG_LENGTH, payload.length, (type, start, end) => {
    if (type === NFQA_PACKET_HDR) id = readNumber(payload, start, end, 4);
    else if (type === NFQA_IFINDEX_INDEV) device = readNumber(payload, start, end, 4);
    else if (type === NFQA_IFINDEX_PHYSINDEV) port = readNumber(payload, start, end, 4);
    else if (type === NFQA_PAYLOAD) bytes = payload.subarray(start, end);
  });
  if (id === undefined) throw new MalformedMessage('NFQUEUE packet without a packet ID');
  return { id, ifindex: port === 0 ? device : port, bytes };
}

function encode(
  type: number,
  flags: number,
  queue: number,
  attributes: readonly Attribute[],
  sequence: number,
): Buffer {
  const payload = encodeAttributes(attributes, nfgenmsg(0, queue));
  return encodeMessages([{ type, flags, payload }], sequence);
}
