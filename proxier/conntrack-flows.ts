import type { IpFamily } from '../api/objects.ts';
import { deleteConntrack, dumpConntrack } from '../netlink/conntrack.ts';
import type { FlowTable } from './family-proxier.ts';

/** The kernel's UDP flows of one family. */
export function conntrackFlows(family: IpFamily): FlowTable {
  return {
    async forget(isStale, origDst) {
      const stale = await dumpConntrack({
        family,
        protocol: 'UDP',
        ...(origDst === undefined ? {} : { origDst }),
        // Other zones belong to other software (OVS, CNIs).
        keep: (entry) => entry.zone === 0 && isStale(entry),
      });
      return stale.length === 0 ? 0 : await deleteConntrack(stale);
    },
  };
}
