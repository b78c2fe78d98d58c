/** Lists the chains of all tables of a family, of any program. */
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import { hasErrno, NO_SUBSYSTEM_ERRNOS } from '../core/error.ts';
import { withSocket } from '../core/socket.ts';
import { readTableChain } from './chain.ts';
import { chainsRequest } from './message.ts';
import { wholeDump } from './whole-dump.ts';

/**
 * The names of the chains in each table that has chains; none if the kernel has no nf_tables.
 * @param family NFPROTO_ number, as in NftTable.
 * @throws NetlinkError
 */
export async function listChainNames(family: number): Promise<Map<string, string[]>> {
  const tables = new Map<string, string[]>();
  try {
    const chains = await withSocket(NETLINK_NETFILTER, (socket) =>
      wholeDump('dump of nf_tables chains', () =>
        socket.dumpOnce(chainsRequest(family), readTableChain),
      ),
    );
    for (const { table, name } of chains) {
      const names = tables.get(table);
      if (names === undefined) tables.set(table, [name]);
      else names.push(name);
    }
  } catch (error) {
    if (!hasErrno(error, ...NO_SUBSYSTEM_ERRNOS)) throw error;
  }
  return tables;
}
