/**
 * A table that belongs to a socket (NFT_TABLE_F_OWNER, Linux 5.12): other programs cannot change it, and the kernel
 * deletes it with the socket, also after kill -9.
 */

import type { IpFamily } from '../../api/objects.ts';
import { TimeSlice } from '../../sync/time-slice.ts';
import { addressFamily } from '../core/address.ts';
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import { EINVAL, EOPNOTSUPP, hasErrno, labelErrors, UnsupportedError } from '../core/error.ts';
import { NetlinkSocket, type RefusedMessage } from '../core/socket.ts';
import { newChainRequest } from './chain.ts';
import {
  NFTA_SET_NAME,
  nameAttribute,
  newRuleRequest,
  newTableRequest,
  nftRequest,
} from './message.ts';
import { newSetRequest } from './set.ts';
import { DATATYPE } from './set-description.ts';
import { TransactionWriter } from './transaction.ts';
import { NftRefusedError } from './transaction-builder.ts';
import type { NftBaseChain, NftElement, NftTable } from './types.ts';

/** A base chain. */
export interface OwnedChain {
  readonly name: string;
  readonly base: NftBaseChain;
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
    writer.append(newTableRequest(table, true));
    for (const { name, keyLength: length } of sets) {
      const key = { datatype: DATATYPE.invalid, length };
      writer.append(newSetRequest(table, { name, flags: 0, key }));
    }
    for (const chain of chains) {
      writer.append(newChainRequest(table, chain.name, chain.base));
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
