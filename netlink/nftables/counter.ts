/** Named counters of nf_tables. */
import { type Attribute, encodeAttributes, readAttributes } from '../core/attribute.ts';
import { MalformedMessage } from '../core/error.ts';
import type { Message, Request } from '../core/message.ts';
import { number, readNumber } from '../core/network.ts';
import { NFGENMSG, NFNL_SUBSYS_NFTABLES, nameBytes, nfgenmsg } from './message.ts';
import type { NftTable } from './types.ts';

/** linux/netfilter/nf_tables.h */
const NFT_MSG_NEWOBJ = 18;
const NFT_MSG_GETOBJ = 19;
const NFT_MSG_DELOBJ = 20;
export const NFT_OBJECT_COUNTER = 1;
const NFTA_OBJ_TABLE = 1;
const NFTA_OBJ_NAME = 2;
const NFTA_OBJ_TYPE = 3;
const NFTA_OBJ_DATA = 4;
const NFTA_COUNTER_BYTES = 1;
const NFTA_COUNTER_PACKETS = 2;

/** A counter of a table. */
export interface NftCounter {
  readonly name: string;
  readonly packets: bigint;
  readonly bytes: bigint;
}

/** Asks, as a dump, for the counters of a table. @throws RangeError */
export function countersRequest(table: NftTable): Request {
  return counterRequest(NFT_MSG_GETOBJ, table, []);
}

/** Deletes a counter that no rule names. @throws RangeError */
export function deleteCounterRequest(table: NftTable, counter: string): Request {
  return counterRequest(NFT_MSG_DELOBJ, table, [
    { type: NFTA_OBJ_NAME, value: nameBytes(counter) },
  ]);
}

function counterRequest(
  type: number,
  { family, name }: NftTable,
  attributes: readonly Attribute[],
): Request {
  return {
    type: (NFNL_SUBSYS_NFTABLES << 8) | type,
    payload: Buffer.concat([
      nfgenmsg(family),
      encodeAttributes([
        { type: NFTA_OBJ_TABLE, value: nameBytes(name) },
        { type: NFTA_OBJ_TYPE, value: number(NFT_OBJECT_COUNTER, 4) },
        ...attributes,
      ]),
    ]),
  };
}

/** @returns undefined for something else, or a counter of another table. @throws MalformedMessage */
export function readCounter({ type, payload }: Message, table: string): NftCounter | undefined {
  if (type !== ((NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_NEWOBJ)) return undefined;
  const attributes = readAttributes(payload, NFGENMSG);
  const text = (which: number) => attributes.get(which)?.toString('utf8').replace(/\0.*$/su, '');
  const kind = attributes.get(NFTA_OBJ_TYPE) ?? Buffer.alloc(0);
  if (text(NFTA_OBJ_TABLE) !== table) return undefined;
  if (readNumber(kind, 0, kind.length, 4) !== NFT_OBJECT_COUNTER) return undefined;
  const data = readAttributes(attributes.get(NFTA_OBJ_DATA) ?? Buffer.alloc(0), 0);
  const count = (which: number) => {
    const bytes = data.get(which);
    if (bytes === undefined || bytes.length < 8) throw new MalformedMessage('counter of nothing');
    return bytes.readBigUInt64BE();
  };
  const [packets, bytes] = [count(NFTA_COUNTER_PACKETS), count(NFTA_COUNTER_BYTES)];
  return { name: text(NFTA_OBJ_NAME) ?? '', packets, bytes };
}
