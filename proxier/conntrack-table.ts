/** Finds and deletes stale conntrack entries in the kernel. */
import type { IpFamily } from '../api/objects.ts';
import { deleteConntrack, dumpConntrack } from '../netlink/conntrack/conntrack.ts';
import type { ConntrackTable } from './family-proxier.ts';

/**
 * The kernel's conntrack entries of one family.
 * @param resetsTcp see `StaleFlowTracker`. Otherwise only few TCP entries can be stale, which the kernel finds.
 */
export function conntrackTable(family: IpFamily, resetsTcp: boolean): ConntrackTable {
  return {
    async deleteStale(isStale, protocols, origDst) {
      let deleted = 0;
      for (const protocol of protocols) {
        const stale = await dumpConntrack({
          family,
          protocol,
          unansweredOnly: protocol === 'TCP' && !resetsTcp,
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
