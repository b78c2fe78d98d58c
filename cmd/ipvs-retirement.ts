import type { Logger } from 'pino';
import { clearIpvs, deleteIpvsDevice, destroySets, retireServices } from '../ipvs/cleanup.ts';
import { IPVS_DEVICE } from '../ipvs/kernel.ts';
import { findLink } from '../netlink/links.ts';
import { untilDone } from './until-done.ts';

/**
 * Takes away what mode ipvs, Portwide's or kube-proxy's, left on the node, once the rules of
 * another mode stand: at once what takes new connections, and the rest, which the established ones
 * need, when these are over. Does nothing on a node without its device.
 * @param excludeCidrs `--ipvs-exclude-cidrs`
 */
export function retireIpvs(excludeCidrs: readonly string[], log: Logger): Promise<void> {
  const failure = 'cannot remove what mode ipvs left; Services are served without it';
  return untilDone(failure, log, async () => {
    if ((await findLink(IPVS_DEVICE)) === undefined) return true;
    const connections = await retireServices(excludeCidrs);
    if (connections > 0) {
      log.info(
        { connections },
        'mode ipvs left connections; its services stay until these are over',
      );
      return false;
    }
    await clearIpvs(excludeCidrs);
    await destroySets();
    // Last: while it is there, the next start finds what an interrupted one has left.
    await deleteIpvsDevice(excludeCidrs);
    log.info({ device: IPVS_DEVICE }, 'removed what mode ipvs had left');
    return true;
  });
}
