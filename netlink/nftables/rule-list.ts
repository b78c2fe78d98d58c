/** Lists the rules of a chain in the kernel, of any program: handles, comments and what the rules do. */
import { readAttributes, requiredAttribute, walkAttributes } from '../core/attribute.ts';
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import { ENOENT, undefinedOnErrno } from '../core/error.ts';
import type { NetlinkMessage } from '../core/message.ts';
import { readNumber } from '../core/network-order.ts';
import { NFGENMSG_LENGTH } from '../core/nfnetlink.ts';
import { withSocket } from '../core/socket.ts';
import { readText } from '../core/text.ts';
import { readComment } from './comment.ts';
import { NFTA_LIST_ELEM } from './element.ts';
import { isNewMessage, nameAttribute, nftRequest, textAttribute } from './message.ts';
import type { NftTable } from './types.ts';

/** linux/netfilter/nf_tables.h */
const NFTA_RULE_CHAIN = 2;
const NFTA_RULE_HANDLE = 3;
const NFTA_RULE_EXPRESSIONS = 4;
const NFTA_RULE_USERDATA = 7;
const NFTA_EXPR_NAME = 1;
const NFTA_EXPR_DATA = 2;
/** Attributes of the expressions `match` and `target` (linux/netfilter/nf_tables_compat.h). */
const NFTA_XT_NAME = 1;
const NFTA_XT_INFO = 3;

/** A rule as a list shows it. */
export interface ListedRule {
  readonly handle: number;
  /** Comment of nft or of iptables-nft; undefined without one. */
  readonly comment: string | undefined;
  /** Names of expressions and, for iptables-nft, of targets: `payload`, `reject`, `DNAT`. */
  readonly operations: readonly string[];
}

/**
 * The rules of a chain in their order; undefined if the chain or table does not exist.
 * @throws NetlinkError; RangeError for an invalid name.
 */
export async function listRules(table: NftTable, chain: string): Promise<ListedRule[] | undefined> {
  const request = nftRequest('GET', 'rule', table, [nameAttribute(NFTA_RULE_CHAIN, chain)]);
  const dump = withSocket(NETLINK_NETFILTER, (socket) => socket.dump(request, readRule));
  return await undefinedOnErrno(dump, ENOENT);
}

/** @returns undefined for another kind of message. @throws MalformedMessage */
export function readRule(message: NetlinkMessage): ListedRule | undefined {
  if (!isNewMessage(message, 'rule')) return undefined;
  const { payload } = message;
  const attributes = readAttributes(payload, NFGENMSG_LENGTH);
  const handle = requiredAttribute(attributes, 'nf_tables', NFTA_RULE_HANDLE, 8);
  const userdata = attributes.get(NFTA_RULE_USERDATA);
  const operations: string[] = [];
  let comment = userdata && readComment(userdata);
  const expressions = attributes.get(NFTA_RULE_EXPRESSIONS) ?? Buffer.alloc(0);
  walkAttributes(expressions, 0, expressions.length, (type, start, end) => {
    if (type !== NFTA_LIST_ELEM) return;
    const expression = readAttributes(expressions, start, end);
    const name = textAttribute(expression, NFTA_EXPR_NAME);
    if (name !== 'match' && name !== 'target') {
      operations.push(name);
      return;
    }
    const data = readAttributes(requiredAttribute(expression, 'nf_tables', NFTA_EXPR_DATA), 0);
    const xtName = textAttribute(data, NFTA_XT_NAME);
    if (xtName === 'comment') comment ??= readText(data.get(NFTA_XT_INFO) ?? Buffer.alloc(0));
    else operations.push(xtName);
  });
  const high = readNumber(handle, 0, 8, 4);
  return { handle: high * 2 ** 32 + readNumber(handle, 4, 8, 4), comment, operations };
}
