/** Lists rules in the kernel, of any program: handles, comments and what the rules do. */
import { readAttributes, requiredAttribute, walkAttributes } from '../core/attribute.ts';
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import { ENOENT, hasErrno, undefinedOnErrno } from '../core/error.ts';
import type { NetlinkMessage, NetlinkRequest } from '../core/message.ts';
import { readU64 } from '../core/network-order.ts';
import { NFGENMSG_LENGTH } from '../core/nfnetlink.ts';
import { type NetlinkSocket, withSocket } from '../core/socket.ts';
import { readText } from '../core/text.ts';
import { listLinks } from '../route/rtnetlink.ts';
import { readExistingChain } from './chain.ts';
import { readComment } from './comment.ts';
import { decodeRule, type RuleContext } from './decode-rule.ts';
import { NFTA_LIST_ELEM } from './element.ts';
import {
  chainsRequest,
  isNewMessage,
  NFTA_RULE_CHAIN,
  NFTA_RULE_EXPRESSIONS,
  NFTA_RULE_USERDATA,
  rulesRequest,
  textAttribute,
} from './message.ts';
import { NFTA_EXPR_DATA, NFTA_EXPR_NAME } from './rule.ts';
import { readSets } from './set-content.ts';
import type { Statement } from './statement.ts';
import { ruleText } from './statement-text.ts';
import type { NftExistingChain, NftTable } from './types.ts';
import { wholeDump } from './whole-dump.ts';

const NFTA_RULE_HANDLE = 3;
/** Attributes of the expressions `match` and `target` (linux/netfilter/nf_tables_compat.h). */
const NFTA_XT_NAME = 1;
const NFTA_XT_INFO = 3;

/** A rule as a list shows it. */
export interface ListedRule {
  readonly chain: string;
  readonly handle: number;
  /** Comment of nft or of iptables-nft; undefined without one. */
  readonly comment: string | undefined;
  /** Names of expressions and, for iptables-nft, of targets: `payload`, `reject`, `DNAT`. */
  readonly operations: readonly string[];
  /** Encoded; see `decodeRule`. */
  readonly expressions: Buffer;
}

/**
 * The rules of a chain in their order; undefined if the chain or table does not exist.
 * @throws NetlinkError; RangeError for an invalid name.
 */
export async function listRules(table: NftTable, chain: string): Promise<ListedRule[] | undefined> {
  const request = rulesRequest(table, chain);
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
  // The memory of the message is reused.
  const expressions = Buffer.from(attributes.get(NFTA_RULE_EXPRESSIONS) ?? []);
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
  return {
    chain: textAttribute(attributes, NFTA_RULE_CHAIN),
    handle: readU64(handle, 0, handle.length),
    comment,
    operations,
    expressions,
  };
}

/** A rule near to the syntax of nft, as the kernel has it. @throws NetlinkError; MalformedMessage. */
export async function readRuleText(table: NftTable, { expressions }: ListedRule): Promise<string> {
  return await withSocket(NETLINK_NETFILTER, async (socket) => {
    // An anonymous set is named in the rule that uses it.
    const isWanted = (set: string) => expressions.includes(`${set}\0`);
    const context = await contextOf(socket, table, isWanted);
    return ruleText(decodeRule(expressions, context));
  });
}

/** The chains of a table, and its rules, by chain and in their order. */
export interface ListedTable<Rule> {
  readonly chains: readonly NftExistingChain[];
  readonly rules: readonly Rule[];
}

/**
 * Reads a table of any program. Lets syncs of this process go first.
 * @param pick Called for each rule, and again from the start if the table changed meanwhile.
 * @returns undefined if the table has more than `maxRules` rules; nothing if it is gone.
 * @throws NetlinkError; MalformedMessage; whatever `pick` throws.
 */
export async function readRuleset<Rule>(
  table: NftTable,
  pick: (rule: ListedRule, statements: readonly Statement[]) => Rule,
  maxRules: number,
): Promise<ListedTable<Rule> | undefined> {
  const read = async (socket: NetlinkSocket): Promise<ListedTable<Rule> | undefined> => {
    const whole = <T>(
      request: NetlinkRequest,
      picker: (message: NetlinkMessage) => T | undefined,
    ) => wholeDump('dump of nf_tables rules', () => socket.dumpOnce(request, picker));
    const all = rulesRequest(table, undefined);
    const counted = await whole(all, (message) =>
      isNewMessage(message, 'rule') ? true : undefined,
    );
    if (counted.length > maxRules) return undefined;
    const chains = await whole(chainsRequest(table.family), (message) =>
      readExistingChain(message, table.name),
    );
    const context = await contextOf(socket, table);
    const rules = await whole(all, (message) => {
      const rule = readRule(message);
      return rule && pick(rule, decodeRule(rule.expressions, context));
    });
    return { chains, rules };
  };
  try {
    return await withSocket(NETLINK_NETFILTER, read, { inBackground: true });
  } catch (error) {
    if (!hasErrno(error, ENOENT)) throw error;
    return { chains: [], rules: [] };
  }
}

async function contextOf(
  socket: NetlinkSocket,
  table: NftTable,
  isWanted?: (set: string) => boolean,
): Promise<RuleContext> {
  const { names: links } = await listLinks();
  return { family: table.family, sets: await readSets(socket, table, isWanted), links };
}
