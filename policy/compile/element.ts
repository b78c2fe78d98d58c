/** Elements as the kernel has them. */
import { createHash } from 'node:crypto';
import type { IpFamily } from '../../api/objects.ts';
import { type AddressFormatter, addressBytes } from '../../netlink/core/address.ts';
import { encodeNumber } from '../../netlink/core/network-order.ts';
import {
  ELEMENT_COMMENT_LIMIT,
  encodeComment,
  readComment,
} from '../../netlink/nftables/comment.ts';
import type { NftElement } from '../../netlink/nftables/tables.ts';
import type { Direction } from '../model/terms.ts';
import { kernelChainNames } from './chains.ts';
import type { FqdnElement, FqdnEntry, PolicyElement } from './change.ts';
import type { NftSetName } from './policy-table.ts';

/** An element for the kernel, and what it was made of. */
export interface KernelElement extends NftElement {
  readonly origin: PolicyElement | FqdnElement | FqdnEntry;
}

/** An element, and the set that it is in. */
export interface SetElement {
  readonly set: NftSetName;
  readonly element: KernelElement;
}

export function setElement(origin: PolicyElement | FqdnElement): SetElement {
  return { set: origin.set, element: { ...nftElement(origin), origin } };
}

function nftElement(origin: PolicyElement | FqdnElement): NftElement {
  switch (origin.set) {
    case 'ingress-pods':
    case 'egress-pods': {
      const direction = origin.set.slice(0, -'-pods'.length) as Direction;
      const [chain] = kernelChainNames(direction, origin.profile);
      return { key: addressBytes(origin.address), data: { kind: 'jump', chain } };
    }
    case 'own': {
      const address = addressBytes(origin.address);
      return { key: Buffer.concat([address, address]) };
    }
    case 'peers':
      return { key: listKey(origin.list, addressBytes(origin.address)) };
    case 'learned':
      return {
        key: listKey(origin.list, addressBytes(origin.address)),
        timeoutMs: wholeMilliseconds(origin.timeoutMs),
      };
    case 'networks':
      return {
        key: listKey(origin.list, addressBytes(origin.first)),
        keyEnd: listKey(origin.list, addressBytes(origin.last)),
      };
    case 'ports':
      return {
        key: listKey(origin.list, portBytes(origin.protocol, origin.first)),
        keyEnd: listKey(origin.list, portBytes(origin.protocol, origin.last)),
      };
    case 'named-ports':
      return {
        key: listKey(
          origin.list,
          addressBytes(origin.address),
          portBytes(origin.protocol, origin.port),
        ),
      };
  }
}

/** As rules look it up. */
function listKey(list: number, ...fields: readonly Buffer[]): Buffer {
  return Buffer.concat([encodeNumber(list, 4), ...fields]);
}

function portBytes(protocol: number, port: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeUInt8(protocol, 0);
  bytes.writeUInt16BE(port, 4);
  return bytes;
}

/** 0 would be no timeout at all. */
function wholeMilliseconds(timeoutMs: number): number {
  return Math.max(Math.ceil(timeoutMs), 1);
}

const HASH = 8;
/** What a domain name is written with. Others do not come back as they were. */
const NAME = /^[\x21\x23-\x5b\x5d-\x7e]+$/;

/**
 * An answer as it is kept: address and a hash of the name, for one address may have many. The name
 * itself is the element's comment.
 * @returns undefined for a name that has no room there: it is not kept.
 */
export function fqdnEntryElement(origin: FqdnEntry): SetElement | undefined {
  const { name, address, timeoutMs } = origin;
  if (name.length >= ELEMENT_COMMENT_LIMIT || !NAME.test(name)) return undefined;
  const hash = createHash('sha256').update(name).digest().subarray(0, HASH);
  const element = {
    key: Buffer.concat([addressBytes(address), hash]),
    timeoutMs: wholeMilliseconds(timeoutMs),
    userdata: encodeComment(name, ELEMENT_COMMENT_LIMIT),
    origin,
  };
  return { set: 'answers', element };
}

/** @returns undefined for an element that is no answer, or no more. */
export function readFqdnEntry(
  { key, timeoutMs = 0, userdata }: NftElement,
  family: IpFamily,
  format: AddressFormatter,
): FqdnEntry | undefined {
  const name = userdata && readComment(userdata);
  if (name === undefined || name === '' || timeoutMs <= 0) return undefined;
  return { name, address: format(key, 0, family === 'IPv4' ? 4 : 16), timeoutMs };
}
