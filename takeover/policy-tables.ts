import { IP_FAMILIES } from '../api/objects.ts';
import { addressFamily } from '../netlink/core/address.ts';
import { UnsupportedError } from '../netlink/core/error.ts';
import { deleteTable, listTables, type NftTable } from '../netlink/nftables/tables.ts';
import { POLICY_TABLES } from '../policy/compile/skeleton.ts';

/**
 * Deletes the tables of network policy: from then on nothing is denied. By netlink: nft need not be there.
 * @returns the number of those that were there.
 * @throws NftRefusedError, NetlinkError
 */
export async function removePolicyTables(): Promise<number> {
  const families = IP_FAMILIES.map(addressFamily);
  const ours = (await tables()).filter(
    ({ name, family }) => POLICY_TABLES.includes(name) && families.includes(family),
  );
  for (const table of ours) await deleteTable(table);
  return ours.length;
}

async function tables(): Promise<NftTable[]> {
  try {
    return await listTables();
  } catch (error) {
    if (error instanceof UnsupportedError) return [];
    throw error;
  }
}
