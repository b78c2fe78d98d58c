/** Generic netlink, under which IPVS is one family of many. */
import {
  type Attribute,
  encodeAttributes,
  readAttributes,
  requiredAttribute,
} from '../core/attribute.ts';
import { ENOENT, MalformedMessage, undefinedOnErrno } from '../core/error.ts';
import { readU16 } from '../core/host-order.ts';
import type { NetlinkSocket } from '../core/socket.ts';
import { nulTerminated } from '../core/text.ts';

/** struct genlmsghdr of linux/genetlink.h: u8 command, u8 version, u16 reserved. */
const GENL_HDRLEN = 4;
/** Of the controller as of IPVS; the kernel does not look at it. */
const VERSION = 1;

/** linux/genetlink.h: the controller, which is the one family with a number known beforehand. */
const GENL_ID_CTRL = 0x10;
const CTRL_CMD_GETFAMILY = 3;
const CTRL_ATTR_FAMILY_ID = 1;
const CTRL_ATTR_FAMILY_NAME = 2;

/** The payload of a message of generic netlink. */
export function genetlinkPayload(command: number, attributes: readonly Attribute[]): Buffer {
  return encodeAttributes(attributes, Buffer.from([command, VERSION, 0, 0]));
}

/**
 * The attributes of a message of generic netlink, by type.
 * @throws MalformedMessage
 */
export function readGenetlink(payload: Buffer): Map<number, Buffer> {
  if (payload.length < GENL_HDRLEN) throw new MalformedMessage('generic message without a header');
  return readAttributes(payload, GENL_HDRLEN);
}

/**
 * The message type under which the kernel serves a family. It is asked by name, and not for
 * a dump of all, because only so does it load the module that has the family
 * (`net-pf-16-proto-16-family-<name>`, ctrl_getfamily in net/netlink/genetlink.c). The number is
 * another one when the module was removed and came back.
 * @param socket Of NETLINK_GENERIC.
 * @returns undefined when the kernel has no such family.
 * @throws NetlinkError, MalformedMessage
 */
export function resolveFamilyId(socket: NetlinkSocket, name: string): Promise<number | undefined> {
  const attributes = [{ type: CTRL_ATTR_FAMILY_NAME, value: nulTerminated(name) }];
  const request = { type: GENL_ID_CTRL, payload: genetlinkPayload(CTRL_CMD_GETFAMILY, attributes) };
  const type = socket.get(request, ({ payload }) =>
    readU16(
      requiredAttribute(readGenetlink(payload), 'generic netlink', CTRL_ATTR_FAMILY_ID, 2),
      0,
    ),
  );
  return undefinedOnErrno(type, ENOENT);
}
