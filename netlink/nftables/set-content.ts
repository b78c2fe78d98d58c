/** Reads the sets that rules look into, of any program. */
import { readAttributes } from '../core/attribute.ts';
import { ENOENT, undefinedOnErrno } from '../core/error.ts';
import type { NetlinkMessage } from '../core/message.ts';
import { optionalNumber } from '../core/network-order.ts';
import { NFGENMSG_LENGTH } from '../core/nfnetlink.ts';
import type { NetlinkSocket } from '../core/socket.ts';
import { visitElements } from './element.ts';
import { intervalsOf, type NftRawElement } from './interval.ts';
import {
  elementsRequest,
  isElementsMessage,
  isNewMessage,
  NFTA_SET_FLAGS,
  NFTA_SET_NAME,
  setsRequest,
  textAttribute,
} from './message.ts';
import { NFTA_SET_DATA_TYPE, NFTA_SET_KEY_LEN } from './set.ts';
import type { SetContent, SetElement } from './statement.ts';
import { NFT_SET_FLAGS, type NftElement, type NftTable } from './types.ts';
import { wholeDump } from './whole-dump.ts';

/** Elements of an anonymous set that are kept. */
const MAX_ELEMENTS = 5000;

interface KnownSet extends SetContent {
  readonly flags: number;
}

/**
 * The sets of a table by name, anonymous ones with their elements.
 * @param isWanted whether the elements of an anonymous set are needed.
 * @throws NetlinkError; MalformedMessage.
 */
export async function readSets(
  socket: NetlinkSocket,
  table: NftTable,
  isWanted: (name: string) => boolean = () => true,
): Promise<ReadonlyMap<string, SetContent>> {
  const sets = new Map<string, SetContent>();
  const dump = () => socket.dumpOnce(setsRequest(table), readSet);
  for (const { flags, ...set } of await wholeDump('dump of nf_tables sets', dump)) {
    const isRead = (flags & NFT_SET_FLAGS.anonymous) !== 0 && isWanted(set.name);
    // A rule may be replaced meanwhile, with its set.
    const elements = isRead
      ? await undefinedOnErrno(readElements(socket, table, set.name, flags), ENOENT)
      : undefined;
    sets.set(set.name, { ...set, elements });
  }
  return sets;
}

function readSet(message: NetlinkMessage): KnownSet | undefined {
  if (!isNewMessage(message, 'set')) return undefined;
  const attributes = readAttributes(message.payload, NFGENMSG_LENGTH);
  return {
    name: textAttribute(attributes, NFTA_SET_NAME),
    flags: optionalNumber(attributes, NFTA_SET_FLAGS, 4) ?? 0,
    keyLength: optionalNumber(attributes, NFTA_SET_KEY_LEN, 4) ?? 0,
    dataType: optionalNumber(attributes, NFTA_SET_DATA_TYPE, 4),
  };
}

/** @returns undefined if there are too many. */
async function readElements(
  socket: NetlinkSocket,
  table: NftTable,
  name: string,
  flags: number,
): Promise<readonly SetElement[] | undefined> {
  const found: NftRawElement[] = [];
  const others: SetElement[] = [];
  await socket.dump(elementsRequest(table, name), (message) => {
    if (!isElementsMessage(message) || found.length > MAX_ELEMENTS * 2) return;
    visitElements(
      message,
      (element) => found.push(element),
      (data) => others.push({ keys: undefined, data }),
    );
  });
  if (found.length > MAX_ELEMENTS * 2) return undefined;
  const isOrdered =
    (flags & (NFT_SET_FLAGS.interval | NFT_SET_FLAGS.concatenation)) === NFT_SET_FLAGS.interval;
  const elements = isOrdered
    ? intervalsOf(found).filter(({ bound }) => bound !== 'end')
    : // The order of a hash differs from run to run.
      found.sort((a, b) => a.key.compare(b.key));
  return [...elements.map(elementOf), ...others];
}

function elementOf({ key, keyEnd, data, bound }: NftElement): SetElement {
  // An interval up to the highest key has no end in the kernel.
  const last = bound === 'start' ? Buffer.alloc(key.length, 0xff) : (keyEnd ?? key);
  return { keys: { first: key, last }, data };
}
