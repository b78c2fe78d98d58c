/** Encodes and decodes nf_tables messages about chains. */
import { type Attribute, readAttributes } from '../core/attribute.ts';
import type { NetlinkMessage, NetlinkRequest } from '../core/message.ts';
import { encodeNumber, optionalNumber } from '../core/network-order.ts';
import { NFGENMSG_LENGTH } from '../core/nfnetlink.ts';
import {
  isNewMessage,
  NFTA_CHAIN_NAME,
  NFTA_TABLE,
  NLM_F_CREATE,
  nameAttribute,
  nftRequest,
  textAttribute,
} from './message.ts';
import type { NftBaseChain, NftExistingChain, NftTable } from './types.ts';

/** linux/netfilter/nf_tables.h */
const NFTA_CHAIN_HOOK = 4;
const NFTA_CHAIN_POLICY = 5;
const NFTA_CHAIN_TYPE = 7;
const NFTA_HOOK_HOOKNUM = 1;
const NFTA_HOOK_PRIORITY = 2;

/** NFTA_CHAIN_HOOK, and NFTA_FLOWTABLE_HOOK without devices. @param hook number. */
export function hookAttributes(hook: number, priority: number): Attribute[] {
  return [
    { type: NFTA_HOOK_HOOKNUM, value: encodeNumber(hook, 4) },
    { type: NFTA_HOOK_PRIORITY, value: encodeNumber(priority >>> 0, 4) },
  ];
}

/**
 * Creates a chain if it does not exist, and sets the policy of a base chain. The kernel refuses another hook or priority
 * of an existing chain (EEXIST).
 * @param base undefined for a chain that is only jumped to, and for any existing chain.
 * @throws RangeError for an invalid name.
 */
export function newChainRequest(
  table: NftTable,
  chain: string,
  base?: NftBaseChain,
): NetlinkRequest {
  const attributes: Attribute[] = [nameAttribute(NFTA_CHAIN_NAME, chain)];
  if (base !== undefined)
    attributes.push(
      { type: NFTA_CHAIN_HOOK, value: hookAttributes(base.hook, base.priority) },
      { type: NFTA_CHAIN_POLICY, value: encodeNumber(base.policy, 4) },
      nameAttribute(NFTA_CHAIN_TYPE, base.type),
    );
  return nftRequest('NEW', 'chain', table, attributes, NLM_F_CREATE);
}

/** @throws RangeError */
export function deleteChainRequest(table: NftTable, chain: string): NetlinkRequest {
  return nftRequest('DEL', 'chain', table, [nameAttribute(NFTA_CHAIN_NAME, chain)]);
}

/**
 * Reads a reply to `chainsRequest`.
 * @returns the name of the chain; undefined for a chain of another table.
 * @throws MalformedMessage
 */
export function readChain(message: NetlinkMessage, table: string): string | undefined {
  const chain = readTableChain(message);
  return chain?.table === table ? chain.name : undefined;
}

/** Reads a reply to `chainsRequest`. @throws MalformedMessage */
export function readTableChain(
  message: NetlinkMessage,
): { readonly table: string; readonly name: string } | undefined {
  if (!isNewMessage(message, 'chain')) return undefined;
  const attributes = readAttributes(message.payload, NFGENMSG_LENGTH);
  return {
    table: textAttribute(attributes, NFTA_TABLE),
    name: textAttribute(attributes, NFTA_CHAIN_NAME),
  };
}

/**
 * Reads a chain with its hook; undefined if it belongs to another table.
 * @throws MalformedMessage
 */
export function readExistingChain(
  message: NetlinkMessage,
  table: string,
): NftExistingChain | undefined {
  const name = readChain(message, table);
  if (name === undefined) return undefined;
  const attributes = readAttributes(message.payload, NFGENMSG_LENGTH);
  const hook = attributes.get(NFTA_CHAIN_HOOK);
  if (hook === undefined) return { name, base: undefined };
  const fields = readAttributes(hook, 0);
  const base = {
    type: textAttribute(attributes, NFTA_CHAIN_TYPE),
    hook: optionalNumber(fields, NFTA_HOOK_HOOKNUM, 4) ?? 0,
    priority: (optionalNumber(fields, NFTA_HOOK_PRIORITY, 4) ?? 0) | 0,
    policy: optionalNumber(attributes, NFTA_CHAIN_POLICY, 4) ?? 1,
  };
  return { name, base };
}
