/** Encodes set elements for the kernel. */
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

/** An encoded element and its source. */
export interface KernelElement extends NftElement {
  readonly source: PolicyElement | FqdnElement | FqdnEntry;
}

/** An encoded element with the set that contains it. */
export interface SetElement {
  readonly set: NftSetName;
  readonly element: KernelElement;
}

export function setElement(source: PolicyElement | FqdnElement): SetElement {
  return { set: source.set, element: { ...nftElement(source), source } };
}

function nftElement(source: PolicyElement | FqdnElement): NftElement {
  switch (source.set) {
    case 'ingress-pods':
    case 'egress-pods': {
      const direction = source.set.slice(0, -'-pods'.length) as Direction;
      const [chain] = kernelChainNames(direction, source.policySetId);
      return { key: addressBytes(source.address), data: { kind: 'jump', chain } };
    }
    case 'hairpin-pods': {
      const address = addressBytes(source.address);
      return { key: Buffer.concat([address, address]) };
    }
    case 'selected-pods':
    case 'dns-bypass':
    case 'owned-vips':
      return { key: addressBytes(source.address) };
    case 'peers':
      return { key: listKey(source.list, addressBytes(source.address)) };
    case 'fqdn-peers':
      return {
        key: listKey(source.list, addressBytes(source.address)),
        timeoutMs: wholeMilliseconds(source.timeoutMs),
      };
    case 'networks':
      return {
        key: listKey(source.list, addressBytes(source.first)),
        keyEnd: listKey(source.list, addressBytes(source.last)),
      };
    case 'ports':
      return {
        key: listKey(source.list, portBytes(source.protocol, source.first)),
        keyEnd: listKey(source.list, portBytes(source.protocol, source.last)),
      };
    case 'named-ports':
      return {
        key: listKey(
          source.list,
          addressBytes(source.address),
          portBytes(source.protocol, source.port),
        ),
      };
  }
}

/** A key of a set that all lists share: the list id comes first. */
function listKey(list: number, ...fields: readonly Buffer[]): Buffer {
  return Buffer.concat([encodeNumber(list, 4), ...fields]);
}

function portBytes(protocol: number, port: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeUInt8(protocol, 0);
  bytes.writeUInt16BE(port, 4);
  return bytes;
}

/** An element of the set `dns-resolvers`. */
export function resolverElement(address: string, timeoutMs: number): NftElement {
  return { key: addressBytes(address), timeoutMs };
}

/** Rounds up a timeout. At least 1, because 0 means no timeout. */
function wholeMilliseconds(timeoutMs: number): number {
  return Math.max(Math.ceil(timeoutMs), 1);
}

const HASH_BYTES = 8;
/**
 * Domain names that an nft comment can hold unchanged: printable ASCII without space, quote and
 * backslash.
 */
const COMMENT_SAFE_NAME = /^[\x21\x23-\x5b\x5d-\x7e]+$/;

/**
 * The element of an FQDN cache entry. Its key is the address and a hash of the name, because an
 * address can have several names. The name itself is the comment of the element.
 * @returns undefined if a comment cannot hold the name; the entry is not stored then.
 */
export function fqdnEntryElement(source: FqdnEntry): SetElement | undefined {
  const { name, address, timeoutMs } = source;
  if (name.length >= ELEMENT_COMMENT_LIMIT || !COMMENT_SAFE_NAME.test(name)) return undefined;
  const hash = createHash('sha256').update(name).digest().subarray(0, HASH_BYTES);
  const element = {
    key: Buffer.concat([addressBytes(address), hash]),
    timeoutMs: wholeMilliseconds(timeoutMs),
    userdata: encodeComment(name, ELEMENT_COMMENT_LIMIT),
    source,
  };
  return { set: 'fqdn-cache', element };
}

/**
 * Reads an element of the set `fqdn-cache`.
 * @returns undefined if the element has no name or has expired.
 */
export function readFqdnEntry(
  { key, timeoutMs = 0, userdata }: NftElement,
  family: IpFamily,
  format: AddressFormatter,
): FqdnEntry | undefined {
  const name = userdata && readComment(userdata);
  if (name === undefined || name === '' || timeoutMs <= 0) return undefined;
  return { name, address: format(key, 0, family === 'IPv4' ? 4 : 16), timeoutMs };
}
