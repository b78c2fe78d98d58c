/** Finds and deletes stale conntrack entries in the kernel. */
import type { IpFamily } from '../api/objects.ts';
import { deleteConntrack, dumpConntrack } from '../netlink/conntrack/conntrack.ts';
import type { ConntrackTable } from './family-proxier.ts';

/** The kernel's conntrack entries of one family. */
export function conntrackTable(family: IpFamily): ConntrackTable {
  return {
    async deleteStale(isStale, protocols, origDst) {
      let deleted = 0;
      for (const protocol of protocols) {
        const stale = await dumpConntrack({
          family,
          protocol,
          ...(origDst === undefined ? {} : { origDst }),
          // Conntrack zones other than 0 belong to other programs (OVS, CNI plug-ins).
          keep: (entry) => entry.zone === 0 && isStale(entry, protocol),
        });
        deleted += await deleteConntrack(stale);
      }
      return deleted;
    },
  };
}
