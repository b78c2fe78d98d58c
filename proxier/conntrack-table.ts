/** Stale conntrack entries of the kernel, found and deleted. */
import type { IpFamily } from '../api/objects.ts';
import { deleteConntrack, dumpConntrack } from '../netlink/conntrack/conntrack.ts';
import type { ConntrackTable } from './family-proxier.ts';

/** The kernel's conntrack entries of one family. */
export function conntrackTable(family: IpFamily): ConntrackTable {
  return {
    async deleteStale(isStale, protocols, origDst) {
      let forgotten = 0;
      for (const protocol of protocols) {
        const stale = await dumpConntrack({
          family,
          protocol,
          ...(origDst === undefined ? {} : { origDst }),
          // Other zones belong to other software (OVS, CNIs).
          keep: (entry) => entry.zone === 0 && isStale(entry, protocol),
        });
        forgotten += await deleteConntrack(stale);
      }
      return forgotten;
    },
  };
}
