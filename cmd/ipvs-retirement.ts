import type { Logger } from 'pino';
import { clearIpvs, deleteIpvsDevice, destroySets, retireServices } from '../ipvs/cleanup.ts';
import { IPVS_DEVICE } from '../ipvs/kernel.ts';
import type { IpvsServiceKey } from '../netlink/ipvs.ts';
import { findLink } from '../netlink/links.ts';
import type { Takeover } from './takeover.ts';

/**
 * Takes away what mode ipvs, Portwide's or kube-proxy's, left on the node, once the rules of
 * another mode stand: at once what takes new connections, and the rest, which the established ones
 * need, when these are over. Does nothing on a node without its device.
 * @param excludeCidrs `--ipvs-exclude-cidrs`
 */
export function retireIpvs(
  excludeCidrs: readonly string[],
  takeover: Takeover,
  log: Logger,
): Promise<void> {
  // Services that had connections at the last look: the others take no new ones.
  let busy: readonly IpvsServiceKey[] | undefined;
  return takeover.remove({
    what: 'ipvs',
    failure: 'cannot remove what mode ipvs left; Services are served without it',
    attempt: async () => {
      if ((await findLink(IPVS_DEVICE)) === undefined) return 0;
      const look = await retireServices(excludeCidrs, busy);
      if (look.connections > 0) {
        busy = look.busy;
        return look.connections;
      }
      // If the rest fails, the next attempt looks at all services again.
      busy = undefined;
      await clearIpvs(excludeCidrs);
      await destroySets();
      // Last: while it is there, the next start finds what an interrupted one has left.
      await deleteIpvsDevice(excludeCidrs);
      log.info({ device: IPVS_DEVICE }, 'removed what mode ipvs had left');
      return 0;
    },
  });
}
