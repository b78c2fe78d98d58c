/** Deletes the nf_tables tables of Portwide and of kube-proxy's nftables mode. */
import type { IpFamily } from '../api/objects.ts';
import { addressFamily } from '../netlink/core/address.ts';
import { deleteTable, listTables } from '../netlink/nftables/tables.ts';
import { TABLE } from '../nftables/static-chains.ts';
import type { CleanupStep } from './cleanup-attempt.ts';

/** The table of kube-proxy's nftables mode. */
export const KUBE_PROXY_TABLE = 'kube-proxy';

/** Deletes the tables of one family that serve Services. */
export function nftTablesCleanup(
  family: IpFamily,
  names: readonly string[] = [TABLE, KUBE_PROXY_TABLE],
): CleanupStep {
  return (attempt) =>
    attempt.remove(`nf_tables, ${family}`, async () => {
      const tables = await deleteTables([family], names);
      if (tables.length > 0) attempt.removed.push({ family, tables });
    });
}

/**
 * Deletes tables with their contents. Uses netlink, because nft may be missing. Also, nft would
 * read the tables of other programs.
 * @returns the names of the deleted tables.
 * @throws NftRefusedError, NetlinkError
 */
export async function deleteTables(
  families: readonly IpFamily[],
  names: readonly string[],
): Promise<string[]> {
  const numbers = families.map(addressFamily);
  const found = (await listTables()).filter(
    ({ family, name }) => numbers.includes(family) && names.includes(name),
  );
  for (const table of found) await deleteTable(table);
  return found.map(({ name }) => name);
}
