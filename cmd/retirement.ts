/**
 * What other modes, of Portwide or of kube-proxy, left on the node goes when the rules of this one
 * stand, not before: in between both serve. The hooks that come last are asked first (nf_hook_entries_grow),
 * and what is translated is translated once, so a packet meets the rules of one of the two. Filters
 * of the mode that goes look for VIPs: what was translated passes them by.
 */
import type { Logger } from 'pino';
import type { IpFamily } from '../api/objects.ts';
import { VARIANTS } from '../iptables/commands.ts';
import {
  cleanTable,
  deleteServiceTables,
  iptablesCommand,
  iptablesTables,
  KUBE_PROXY_TABLE,
} from './removal.ts';
import { untilDone } from './until-done.ts';

/** For modes other than nftables: Portwide's table and kube-proxy's. */
export function retireNftables(family: IpFamily, log: Logger): Promise<void> {
  return untilDone(failureOf('nftables'), log, async () => {
    const tables = await deleteServiceTables(family);
    if (tables.length > 0) log.info({ family, tables }, removedOf('nftables'));
    return true;
  });
}

/**
 * For mode nftables: kube-proxy's table, and the rules of modes iptables and ipvs. Resolves when
 * all of it is gone.
 */
export function retireOthers(family: IpFamily, log: Logger): Promise<void> {
  return untilDone(failureOf('another mode'), log, async () => {
    const tables = await deleteServiceTables(family, [KUBE_PROXY_TABLE]);
    if (tables.length > 0) log.info({ family, tables }, removedOf('nftables'));
    const failures: unknown[] = [];
    for (const variant of VARIANTS) {
      const cleaned: string[] = [];
      for (const table of await iptablesTables(family, variant)) {
        // One that cannot be cleaned keeps no other from it.
        const found = await cleanTable(family, variant, table).catch((error: unknown) => {
          failures.push(error);
          return false;
        });
        if (found) cleaned.push(table);
      }
      const command = iptablesCommand(family, variant);
      if (cleaned.length > 0) log.info({ family, command, tables: cleaned }, removedOf('iptables'));
    }
    if (failures.length === 0) return true;
    throw new AggregateError(failures, failures.map(String).join('; '), { cause: failures[0] });
  });
}

function failureOf(mode: string): string {
  return `cannot remove what ${mode} left; "portwide cleanup" removes all`;
}

function removedOf(mode: string): string {
  return `removed what mode ${mode} had left`;
}
