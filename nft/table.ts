/** The operations on one nf_tables table: in the kernel (`NfTables`), or in memory for tests (`FakeTables`). */
import type { NfTables, NftReader } from '../netlink/nftables/tables.ts';

export type { NftReader } from '../netlink/nftables/tables.ts';

export type RuleTable = NftReader &
  Pick<NfTables, 'transact' | 'readBesides' | 'remove' | 'delete' | 'close'>;
