/** Dumps the tables, chains, sets, counters and flowtables of a table from the kernel, attribute by attribute. */
import type { IpFamily } from '../../api/objects.ts';
import { addressFamily } from '../../netlink/core/address.ts';
import { readAttributes, walkAttributes } from '../../netlink/core/attribute.ts';
import { NETLINK_NETFILTER } from '../../netlink/core/descriptor.ts';
import type { NetlinkRequest } from '../../netlink/core/message.ts';
import { NFGENMSG_LENGTH } from '../../netlink/core/nfnetlink.ts';
import { NetlinkSocket } from '../../netlink/core/socket.ts';
import { readText } from '../../netlink/core/text.ts';
import { chainsRequest, nftRequest, setsRequest } from '../../netlink/nftables/message.ts';
import type { NftTable } from '../../netlink/nftables/types.ts';

/** NFTA_TABLE_NAME, NFTA_CHAIN_TABLE and so on. */
const TABLE_NAME = 1;

interface Kind {
  readonly request: (table: NftTable) => NetlinkRequest;
  /** The attribute with the name. */
  readonly name: number;
  /** Handles, and numbers of references and elements. */
  readonly ignored: readonly number[];
}

/** Numbers of linux/netfilter/nf_tables.h. */
const KINDS: Readonly<Record<string, Kind>> = {
  table: {
    request: (table) => nftRequest('GET', 'table', table),
    name: TABLE_NAME,
    ignored: [3, 4],
  },
  chain: { request: ({ family }) => chainsRequest(family), name: 3, ignored: [2, 6] },
  set: { request: setsRequest, name: 2, ignored: [16, 20] },
  object: { request: (table) => nftRequest('GET', 'object', table), name: 2, ignored: [5, 6] },
};

/** Texts such as `3=00000008`, one for each attribute, by kind and name. */
export type RawObjects = Readonly<Record<string, readonly string[]>>;

export async function dumpObjects(family: IpFamily, name: string): Promise<RawObjects> {
  const socket = new NetlinkSocket(NETLINK_NETFILTER);
  const table = { family: addressFamily(family), name };
  const objects: [string, readonly string[]][] = [];
  try {
    for (const [kind, { request, name: nameType, ignored }] of Object.entries(KINDS)) {
      await socket.dump(request(table), ({ payload }) => {
        const attributes = readAttributes(payload, NFGENMSG_LENGTH);
        const text = (type: number) => readText(attributes.get(type) ?? Buffer.alloc(0));
        if (text(TABLE_NAME) !== name) return;
        const texts: string[] = [];
        walkAttributes(payload, NFGENMSG_LENGTH, payload.length, (type, start, end) => {
          if (!ignored.includes(type)) texts.push(`${type}=${payload.toString('hex', start, end)}`);
        });
        objects.push([`${kind} ${text(nameType)}`, texts]);
      });
    }
  } finally {
    await socket.close();
  }
  return Object.fromEntries(objects.sort(([a], [b]) => (a < b ? -1 : 1)));
}
