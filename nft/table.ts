/** One table of nf_tables as those use it that keep it: in the kernel (`NfTables`), or in memory (`FakeTables`). */
import type { NfTables } from '../netlink/nftables/tables.ts';

export type RuleTable = Pick<
  NfTables,
  'transact' | 'visitElements' | 'chains' | 'sets' | 'counters' | 'remove' | 'delete' | 'close'
>;
