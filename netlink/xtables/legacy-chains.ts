/**
 * Reads the chains of iptables-legacy tables from the kernel (linux/netfilter_ipv4/ip_tables.h and
 * linux/netfilter_ipv6/ip6_tables.h), by socket options as iptables-legacy-save does.
 */
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import type { IpFamily } from '../../api/objects.ts';
import { addressFamily } from '../core/address.ts';
import { checkResult } from '../core/descriptor.ts';
import { EAFNOSUPPORT, EAGAIN, hasErrno, MalformedMessage } from '../core/error.ts';
import { readU16, readU32, writeU32 } from '../core/host-order.ts';
import { libc } from '../core/libc.ts';
import { readText } from '../core/text.ts';

const SOCK_DGRAM_CLOEXEC = 2 | 0x80000;
/** IPT_SO_GET_ and IP6T_SO_GET_ have the same numbers. */
const GET_INFO = 64;
const GET_ENTRIES = 65;
/** struct ipt_getinfo: name of the table, and last the size of its entries. */
const TABLE_NAME_LENGTH = 32;
const INFO_LENGTH = 84;
const INFO_SIZE = 80;
/** struct ipt_get_entries: name, size, and the entries, aligned to 8 bytes. */
const ENTRIES_SIZE = 32;
const ENTRIES_START = 40;
/** struct xt_entry_target: its size, the name of the target, a revision, and data. */
const TARGET_NAME = 2;
const TARGET_NAME_LENGTH = 29;
const TARGET_DATA = 32;
/** XT_FUNCTION_MAXNAMELEN */
const CHAIN_NAME_LENGTH = 30;
/** A chain starts with an entry that has this target, with the name of the chain as data. So does the end of the table. */
const CHAIN_START = 'ERROR';
/** Reads of a table that other programs replace meanwhile. */
const ATTEMPTS = 5;

/** Level of the socket options, and the place of target_offset in struct ipt_entry; next_offset follows. */
const LAYOUTS = {
  IPv4: { level: 0, targetOffset: 88 },
  IPv6: { level: 41, targetOffset: 140 },
} as const satisfies Record<IpFamily, object>;

/** Tables of iptables-legacy that exist in the network namespace. Looking for others would create them. */
export async function legacyTables(family: IpFamily): Promise<string[]> {
  const file = `/proc/net/${family === 'IPv4' ? 'ip' : 'ip6'}_tables_names`;
  if (!existsSync(file)) return [];
  return (await readFile(file, 'utf8')).split('\n').filter((name) => name !== '');
}

/**
 * The names of the chains that programs have added to an existing table. Needs CAP_NET_ADMIN.
 * @throws NetlinkError, MalformedMessage
 */
export async function legacyChainNames(family: IpFamily, table: string): Promise<string[]> {
  const label = `chains of iptables-legacy table ${table}`;
  const fd = libc().socket(addressFamily(family), SOCK_DGRAM_CLOEXEC, 0);
  // Without the IP family (ipv6.disable=1), rules of its tables do nothing.
  if (fd === -EAFNOSUPPORT) return [];
  checkResult(label, fd);
  try {
    for (let attempt = 1; ; attempt++) {
      try {
        return readChainNames(family, await readEntries(fd, family, table, label));
      } catch (error) {
        // The size of the table has changed in between.
        if (!hasErrno(error, EAGAIN) || attempt === ATTEMPTS) throw error;
      }
    }
  } finally {
    libc().close(fd);
  }
}

async function readEntries(
  fd: number,
  family: IpFamily,
  table: string,
  label: string,
): Promise<Buffer> {
  const { level } = LAYOUTS[family];
  const info = Buffer.alloc(INFO_LENGTH);
  info.write(table, 0, TABLE_NAME_LENGTH - 1);
  checkResult(label, await libc().getsockopt(fd, level, GET_INFO, info));
  const size = readU32(info, INFO_SIZE);
  const bytes = Buffer.alloc(ENTRIES_START + size);
  bytes.write(table, 0, TABLE_NAME_LENGTH - 1);
  writeU32(bytes, size, ENTRIES_SIZE);
  checkResult(label, await libc().getsockopt(fd, level, GET_ENTRIES, bytes));
  return bytes.subarray(ENTRIES_START);
}

/**
 * The names of the chains in the entries of a table, except for built-in chains.
 * @throws MalformedMessage
 */
export function readChainNames(family: IpFamily, entries: Buffer): string[] {
  const { targetOffset } = LAYOUTS[family];
  const names: string[] = [];
  for (let start = 0; start < entries.length; ) {
    if (start + targetOffset + 4 > entries.length) throw malformed(start);
    const target = start + readU16(entries, start + targetOffset);
    const next = start + readU16(entries, start + targetOffset + 2);
    if (next <= target || target <= start || next > entries.length) throw malformed(start);
    const name = target + TARGET_NAME;
    if (readText(entries.subarray(name, name + TARGET_NAME_LENGTH)) === CHAIN_START) {
      const data = target + TARGET_DATA;
      names.push(readText(entries.subarray(data, data + CHAIN_NAME_LENGTH)));
    }
    start = next;
  }
  // The entry at the end of the table is named ERROR, too.
  return names.slice(0, -1);
}

function malformed(offset: number): MalformedMessage {
  return new MalformedMessage(`entry of an iptables-legacy table at byte ${offset}`);
}
