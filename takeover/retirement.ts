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
  isLocalnetOpen,
  type LocalnetOpenError,
} from './removal.ts';
import type { Takeover } from './takeover.ts';

/**
 * Tables of mode nftables. Resolves when they are gone.
 * @param names default: Portwide's table and kube-proxy's.
 */
export function retireNftables(
  family: IpFamily,
  takeover: Takeover,
  log: Logger,
  names?: readonly string[],
): Promise<void> {
  return takeover.remove({
    what: 'nftables',
    failure: failureOf('nftables'),
    attempt: async () => {
      const tables = await deleteServiceTables(family, names);
      if (tables.length > 0) log.info({ family, tables }, removedOf('nftables'));
      return 0;
    },
  });
}

/**
 * The rules of modes iptables and ipvs, of both variants. Resolves when they are gone; KUBE-FIREWALL may
 * stay longer, while route_localnet is 1.
 */
export function retireIptables(family: IpFamily, takeover: Takeover, log: Logger): Promise<void> {
  const cleaned = Promise.withResolvers<void>();
  let waitsForLocalnet = false;
  const attempt = async () => {
    if (waitsForLocalnet && (await isLocalnetOpen())) return 'sysctl';
    const failures: unknown[] = [];
    let open: LocalnetOpenError | undefined;
    for (const variant of VARIANTS) {
      const tables: string[] = [];
      for (const table of await iptablesTables(family, variant)) {
        // One that cannot be cleaned keeps no other from it.
        try {
          const result = await cleanTable(family, variant, table);
          if (result.isCleaned) tables.push(table);
          open ??= result.open;
        } catch (error) {
          failures.push(error);
        }
      }
      const command = iptablesCommand(family, variant);
      if (tables.length > 0) log.info({ family, command, tables }, removedOf('iptables'));
    }
    if (failures.length > 0) {
      throw new AggregateError(failures, failures.map(String).join('; '), { cause: failures[0] });
    }
    if (open !== undefined && !waitsForLocalnet) warnOfLocalnet(open, log);
    waitsForLocalnet = open !== undefined;
    cleaned.resolve();
    return waitsForLocalnet ? 'sysctl' : 0;
  };
  void takeover.remove({ what: 'iptables', failure: failureOf('iptables'), attempt });
  return cleaned.promise;
}

/** Harmless: what neighbours send there is dropped, as it was before. */
function warnOfLocalnet(open: LocalnetOpenError, log: Logger): void {
  log.warn(
    { sysctl: open.sysctl, err: open },
    'all that mode iptables left is removed but KUBE-FIREWALL, which keeps neighbours from 127.0.0.0/8 while route_localnet is 1; ' +
      'Services are not concerned. A new pod sets it back in its init container ("portwide run --init-only")',
  );
}

function failureOf(mode: string): string {
  return `cannot remove what mode ${mode} left; Services are served without it`;
}

function removedOf(mode: string): string {
  return `removed what mode ${mode} had left`;
}
