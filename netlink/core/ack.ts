/**
 * Decodes acks and extended acks. The kernel sends an ack in reply to a request that returns no
 * data, and at the end of a dump.
 */
import { align, readAttributes } from './attribute.ts';
import { type ExtendedAck, MalformedMessage } from './error.ts';
import { readU32 } from './host-order.ts';
import { type NetlinkMessage, NLMSG_ERROR, NLMSG_HDRLEN } from './message.ts';
import { readText } from './text.ts';

/**
 * Flags of an NLMSG_ERROR (linux/netlink.h). CAPPED: the kernel omits the payload of the request.
 * ACK_TLVS: attributes follow.
 */
const NLM_F_CAPPED = 0x100;
const NLM_F_ACK_TLVS = 0x200;

const NLMSGERR_ATTR_MSG = 1;
const NLMSGERR_ATTR_OFFS = 2;

export interface Ack {
  /** Positive error number; 0 for success. */
  readonly errno: number;
  readonly extendedAck: ExtendedAck | undefined;
}

/**
 * Reads an NLMSG_ERROR (struct nlmsgerr: int error, the header of the request, its payload unless
 * capped, attributes) or an NLMSG_DONE (int error, attributes). Some kernels omit the error number
 * of an NLMSG_DONE.
 * @throws MalformedMessage
 */
export function readAck({ type, flags, payload }: NetlinkMessage): Ack {
  if (payload.length < 4) {
    if (type !== NLMSG_ERROR) return { errno: 0, extendedAck: undefined };
    throw new MalformedMessage('NLMSG_ERROR without an error number');
  }
  const errno = Math.abs(readU32(payload, 0) | 0);
  if ((flags & NLM_F_ACK_TLVS) === 0) return { errno, extendedAck: undefined };

  let start = 4;
  if (type === NLMSG_ERROR) {
    if (payload.length < 4 + NLMSG_HDRLEN)
      throw new MalformedMessage('NLMSG_ERROR without the header of the request');
    const capped = (flags & NLM_F_CAPPED) !== 0;
    start += capped ? NLMSG_HDRLEN : Math.max(align(readU32(payload, 4)), NLMSG_HDRLEN);
  }
  const attributes = readAttributes(payload, start);
  const text = attributes.get(NLMSGERR_ATTR_MSG);
  const offset = attributes.get(NLMSGERR_ATTR_OFFS);
  return {
    errno,
    extendedAck: {
      message: text && readText(text),
      offset: offset !== undefined && offset.length >= 4 ? readU32(offset, 0) : undefined,
    },
  };
}
