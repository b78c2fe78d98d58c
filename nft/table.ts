/** The operations on one nf_tables table: in the kernel (`NfTables`), or in memory for tests (`FakeTables`). */
import type { NfTables } from '../netlink/nftables/tables.ts';

export type { NftReader } from '../netlink/nftables/tables.ts';

export type RuleTable = Pick<
  NfTables,
  | 'transact'
  | 'readBesides'
  | 'visitElements'
  | 'findElement'
  | 'tableFlags'
  | 'chains'
  | 'chainsWithHooks'
  | 'rules'
  | 'sets'
  | 'counters'
  | 'remove'
  | 'delete'
  | 'close'
>;
