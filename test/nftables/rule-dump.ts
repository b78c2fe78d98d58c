/** Dumps the rules of a table from the kernel as comparable text. */
import type { IpFamily } from '../../api/objects.ts';
import { addressFamily } from '../../netlink/core/address.ts';
import { readAttributes, walkAttributes } from '../../netlink/core/attribute.ts';
import { NETLINK_NETFILTER } from '../../netlink/core/descriptor.ts';
import type { NetlinkMessage } from '../../netlink/core/message.ts';
import { NFGENMSG_LENGTH, NFNL_SUBSYS_NFTABLES, nfgenmsg } from '../../netlink/core/nfnetlink.ts';
import { NetlinkSocket } from '../../netlink/core/socket.ts';

const NFT_MSG_NEWRULE = 6;
const NFT_MSG_GETRULE = 7;
const NFTA_RULE_TABLE = 1;
const NFTA_RULE_CHAIN = 2;
const NFTA_RULE_EXPRESSIONS = 4;
const NFTA_EXPR_NAME = 1;
const NFTA_EXPR_DATA = 2;

/** An expression, such as `lookup 1=736572… 2=00000008 …`: attributes by number, in hex. */
type ExpressionText = string;

export interface DumpedRule {
  readonly chain: string;
  readonly expressions: readonly ExpressionText[];
}

/** All rules of a table by chain, in order; none if the table does not exist. */
export async function dumpRules(family: IpFamily, table: string): Promise<DumpedRule[]> {
  const socket = new NetlinkSocket(NETLINK_NETFILTER);
  const type = NFNL_SUBSYS_NFTABLES | NFT_MSG_GETRULE;
  try {
    const payload = nfgenmsg(addressFamily(family));
    return await socket.dump({ type, payload }, (message) => readRule(message, table));
  } finally {
    await socket.close();
  }
}

function readRule({ type, payload }: NetlinkMessage, table: string): DumpedRule | undefined {
  if (type !== (NFNL_SUBSYS_NFTABLES | NFT_MSG_NEWRULE)) return undefined;
  const attributes = readAttributes(payload, NFGENMSG_LENGTH);
  if (text(attributes.get(NFTA_RULE_TABLE)) !== table) return undefined;
  const expressions: string[] = [];
  const list = attributes.get(NFTA_RULE_EXPRESSIONS) ?? Buffer.alloc(0);
  walkAttributes(list, 0, list.length, (_, start, end) => {
    const expression = readAttributes(list.subarray(0, end), start);
    const data = expression.get(NFTA_EXPR_DATA) ?? Buffer.alloc(0);
    expressions.push(`${text(expression.get(NFTA_EXPR_NAME))} ${tree(data)}`);
  });
  return { chain: text(attributes.get(NFTA_RULE_CHAIN)), expressions };
}

/** Attributes as text, `number=hex`. A nested attribute list remains one hex value. */
function tree(bytes: Buffer): string {
  const parts: string[] = [];
  walkAttributes(bytes, 0, bytes.length, (type, start, end) => {
    parts.push(`${type}=${bytes.toString('hex', start, end)}`);
  });
  return parts.join(' ');
}

function text(bytes: Buffer | undefined): string {
  return bytes?.toString('utf8').replace(/\0$/, '') ?? '';
}
