import type { Logger } from 'pino';
import { IPVS_DEVICE } from '../api/vip-device.ts';
import type { IpvsServiceKey } from '../netlink/ipvs/ipvs.ts';
import { findLink } from '../netlink/route/links.ts';
import { clearIpvs, deleteIpvsDevice, destroySets, retireServices } from './ipvs.ts';
import type { Takeover } from './takeover.ts';

const KERNEL = {
  hasDevice: async () => (await findLink(IPVS_DEVICE)) !== undefined,
  retireServices,
  clearIpvs,
  destroySets,
  deleteIpvsDevice,
};

/**
 * Takes away what mode ipvs, Portwide's or kube-proxy's, left on the node, once the rules of
 * another mode stand: at once what takes new connections, and the rest, which the established ones
 * need, when these are over. Does nothing on a node without its device.
 * @param excludeCidrs `--ipvs-exclude-cidrs`
 * @param kernel for tests.
 */
export function retireIpvs(
  excludeCidrs: readonly string[],
  takeover: Takeover,
  log: Pick<Logger, 'info'>,
  kernel: typeof KERNEL = KERNEL,
): Promise<void> {
  // Services that had connections at the last look: the others take no new ones.
  let busy: readonly IpvsServiceKey[] | undefined;
  return takeover.remove({
    what: 'ipvs',
    failure: 'cannot remove what mode ipvs left; Services are served without it',
    attempt: async () => {
      if (!(await kernel.hasDevice())) return 0;
      const look = await kernel.retireServices(excludeCidrs, busy);
      // The next look is at all services again: any of them may have got a connection by then.
      if (look.hasBegun) return look.connections > 0 ? look.connections : 'handshakes';
      if (look.connections > 0) {
        busy = look.busy;
        return look.connections;
      }
      // If the rest fails, the next attempt looks at all services again.
      busy = undefined;
      await kernel.clearIpvs(excludeCidrs);
      await kernel.destroySets();
      // Last: while it is there, the next start finds what an interrupted one has left.
      await kernel.deleteIpvsDevice(excludeCidrs);
      log.info({ device: IPVS_DEVICE }, 'removed what mode ipvs had left');
      return 0;
    },
  });
}
