/**
 * A table that belongs to a socket (NFT_TABLE_F_OWNER, Linux 5.12): other programs cannot change it, and the kernel
 * deletes it with the socket, also after kill -9.
 */

import type { IpFamily } from '../../api/objects.ts';
import { TimeSlice } from '../../sync/time-slice.ts';
import { addressFamily } from '../core/address.ts';
import type { Attribute } from '../core/attribute.ts';
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import { EINVAL, EOPNOTSUPP, hasErrno, labelErrors, UnsupportedError } from '../core/error.ts';
import { encodeNumber } from '../core/network-order.ts';
import { NetlinkSocket, type RefusedMessage } from '../core/socket.ts';
import { HOOKS, type Hook } from './hooks.ts';
import { NLM_F_CREATE, nameAttribute, newRuleRequest, nftRequest } from './message.ts';
import { TransactionWriter } from './transaction.ts';
import { NftRefusedError } from './transaction-builder.ts';
import type { NftElement, NftTable } from './types.ts';

/** A base chain of type filter and policy accept. */
export interface OwnedChain {
  readonly name: string;
  readonly hook: Hook;
  readonly priority: number;
  /** Encoded rules, see `encodeRule`. */
  readonly rules: readonly Buffer[];
}

/** A hash set of constant keys. */
export interface OwnedSet {
  readonly name: string;
  /** Bytes of a key; fields of a concatenation are padded to 4 bytes. */
  readonly keyLength: number;
  readonly keys: readonly Buffer[];
}

/** linux/netfilter/nf_tables.h */
const NFTA_TABLE_FLAGS = 2;
const NFT_TABLE_F_OWNER = 2;
const NFTA_CHAIN_NAME = 3;
const NFTA_CHAIN_HOOK = 4;
const NFTA_CHAIN_TYPE = 7;
const NFTA_HOOK_HOOKNUM = 1;
const NFTA_HOOK_PRIORITY = 2;
const NFTA_SET_NAME = 2;
const NFTA_SET_FLAGS = 3;
const NFTA_SET_KEY_TYPE = 4;
const NFTA_SET_KEY_LEN = 5;
const NFTA_SET_ID = 10;
const SEND_BUFFER = 64 << 20;
/** Index of the request that creates the table, after the batch begin. */
const TABLE_REQUEST = 1;
const FEATURE = 'nf_tables tables with an owner for this IP family (nf_tables, Linux 5.12)';

/** Tables of both families that one socket owns. */
export class OwnedTables {
  readonly #socket: NetlinkSocket;
  readonly #name: string;

  /** @throws NetlinkError */
  constructor(name: string) {
    this.#name = name;
    this.#socket = new NetlinkSocket(NETLINK_NETFILTER, { sendBuffer: SEND_BUFFER });
  }

  /**
   * Creates the table of a family in one transaction.
   * @throws UnsupportedError without nf_tables for this family, or before Linux 5.12; NftRefusedError: EEXIST or EPERM if
   * another socket owns a table of this name.
   */
  async create(
    family: IpFamily,
    sets: readonly OwnedSet[],
    chains: readonly OwnedChain[],
  ): Promise<void> {
    const table = this.#table(family);
    const writer = new TransactionWriter(table.family, table.name);
    const owner = { type: NFTA_TABLE_FLAGS, value: encodeNumber(NFT_TABLE_F_OWNER, 4) };
    writer.append(nftRequest('NEW', 'table', table, [owner], NLM_F_CREATE));
    for (const [index, set] of sets.entries()) writer.append(newSet(table, set, index + 1));
    for (const chain of chains) {
      writer.append(newChain(table, chain));
      for (const expressions of chain.rules) {
        writer.append(newRuleRequest(table, chain.name, { expressions }));
      }
    }
    const slice = new TimeSlice();
    for (const { name, keys } of sets) {
      for (const key of keys) {
        writer.write('add', name, { key });
        if (slice.isOver()) await slice.yield();
      }
    }
    const refusal = await this.#send(writer);
    if (refusal === undefined) return;
    if (refusal.index === TABLE_REQUEST && hasErrno(refusal.error, EOPNOTSUPP, EINVAL))
      throw new UnsupportedError(FEATURE, { cause: refusal.error });
    throw new NftRefusedError(refusal.error);
  }

  /** Adds and deletes keys of a set. @throws NftRefusedError */
  async change(
    family: IpFamily,
    set: string,
    added: readonly Buffer[],
    deleted: readonly Buffer[],
  ): Promise<void> {
    if (added.length + deleted.length === 0) return;
    const table = this.#table(family);
    const writer = new TransactionWriter(table.family, table.name);
    const elements = (keys: readonly Buffer[]): NftElement[] => keys.map((key) => ({ key }));
    for (const element of elements(deleted)) writer.write('delete', set, element);
    for (const element of elements(added)) writer.write('add', set, element);
    const refusal = await this.#send(writer);
    if (refusal !== undefined) throw new NftRefusedError(refusal.error);
  }

  /** Replaces all keys of a set, whatever keys it has. @throws NftRefusedError; NetlinkError */
  async replace(family: IpFamily, set: string, keys: readonly Buffer[]): Promise<void> {
    const table = this.#table(family);
    const writer = new TransactionWriter(table.family, table.name);
    // Without elements, the kernel deletes all.
    writer.append(nftRequest('DEL', 'element', table, [nameAttribute(NFTA_SET_NAME, set)]));
    for (const key of keys) writer.write('add', set, { key });
    const refusal = await this.#send(writer);
    if (refusal !== undefined) throw new NftRefusedError(refusal.error);
  }

  /** Closes the socket, and with it deletes the tables. */
  close(): Promise<void> {
    return this.#socket.close();
  }

  #table(family: IpFamily): NftTable {
    return { family: addressFamily(family), name: this.#name };
  }

  async #send(writer: TransactionWriter): Promise<RefusedMessage | undefined> {
    const sent = this.#socket.transaction(async () => writer.finish());
    const [refusal] = await labelErrors(`nf_tables transaction in ${this.#name}`, sent);
    return refusal;
  }
}

function newChain(table: NftTable, { name, hook, priority }: OwnedChain) {
  const order = Buffer.alloc(4);
  order.writeInt32BE(priority);
  const attributes: Attribute[] = [
    nameAttribute(NFTA_CHAIN_NAME, name),
    {
      type: NFTA_CHAIN_HOOK,
      value: [
        { type: NFTA_HOOK_HOOKNUM, value: encodeNumber(HOOKS.indexOf(hook), 4) },
        { type: NFTA_HOOK_PRIORITY, value: order },
      ],
    },
    nameAttribute(NFTA_CHAIN_TYPE, 'filter'),
  ];
  return nftRequest('NEW', 'chain', table, attributes, NLM_F_CREATE);
}

function newSet(table: NftTable, { name, keyLength }: OwnedSet, id: number) {
  const number = (type: number, value: number): Attribute => ({
    type,
    value: encodeNumber(value, 4),
  });
  const attributes = [
    nameAttribute(NFTA_SET_NAME, name),
    number(NFTA_SET_FLAGS, 0),
    // For nft only; 0 is "invalid", which nft prints as hexadecimal.
    number(NFTA_SET_KEY_TYPE, 0),
    number(NFTA_SET_KEY_LEN, keyLength),
    number(NFTA_SET_ID, id),
  ];
  return nftRequest('NEW', 'set', table, attributes, NLM_F_CREATE);
}
