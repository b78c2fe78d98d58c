/** Generic netlink, which carries the IPVS protocol. */
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
/** Version for the controller and for IPVS. The kernel ignores it. */
const VERSION = 1;

/** linux/genetlink.h: the controller is the only family with a fixed ID. */
const GENL_ID_CTRL = 0x10;
const CTRL_CMD_GETFAMILY = 3;
const CTRL_ATTR_FAMILY_ID = 1;
const CTRL_ATTR_FAMILY_NAME = 2;

/** The payload of a generic netlink message. */
export function genetlinkPayload(command: number, attributes: readonly Attribute[]): Buffer {
  return encodeAttributes(attributes, Buffer.from([command, VERSION, 0, 0]));
}

/**
 * Reads the attributes of a generic netlink message, by type.
 * @throws MalformedMessage
 */
export function readGenetlink(payload: Buffer): Map<number, Buffer> {
  if (payload.length < GENL_HDRLEN)
    throw new MalformedMessage('generic netlink message without a header');
  return readAttributes(payload, GENL_HDRLEN);
}

/**
 * Resolves the family ID, which is the message type of the family. Requests the family by name
 * instead of dumping all families: only then does the kernel load its module
 * (`net-pf-16-proto-16-family-<name>`, ctrl_getfamily in net/netlink/genetlink.c). The ID changes
 * if the module is removed and loaded again.
 * @param socket A NETLINK_GENERIC socket.
 * @returns undefined if the kernel does not have the family.
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
