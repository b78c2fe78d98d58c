/** Whether conntrack counts packets and bytes. */
import { readFile } from 'node:fs/promises';

/** `net.netfilter.nf_conntrack_acct` of this network namespace; false if the file cannot be read. */
export async function isConntrackCounting(): Promise<boolean> {
  try {
    return (await readFile('/proc/sys/net/netfilter/nf_conntrack_acct', 'utf8')).trim() === '1';
  } catch {
    return false;
  }
}
