import type { Logger } from 'pino';
import { clearIpvs, deleteIpvsDevice, destroySets, retireServices } from '../ipvs/cleanup.ts';
import { IPVS_DEVICE } from '../ipvs/kernel.ts';
import { findLink } from '../netlink/links.ts';

/** Milliseconds between two looks whether connections are over. */
const PERIOD = 60_000;

/**
 * Takes away what mode ipvs, Portwide's or kube-proxy's, left on the node, once the rules of
 * another mode stand: at once what takes new connections, and the rest, which the established ones
 * need, when these are over. Does nothing on a node without its device.
 * @param excludeCidrs `--ipvs-exclude-cidrs`
 */
export async function retireIpvs(excludeCidrs: readonly string[], log: Logger): Promise<void> {
  try {
    if ((await findLink(IPVS_DEVICE)) === undefined) return;
    const connections = await retireServices(excludeCidrs);
    if (connections > 0) {
      log.info(
        { connections },
        'mode ipvs left connections; its services stay until these are over',
      );
      setTimeout(() => void retireIpvs(excludeCidrs, log), PERIOD).unref();
      return;
    }
    await clearIpvs(excludeCidrs);
    await destroySets();
    // Last: while it is there, the next start finds what an interrupted one has left.
    await deleteIpvsDevice(excludeCidrs);
    log.info({ device: IPVS_DEVICE }, 'removed what mode ipvs had left');
  } catch (error) {
    log.warn({ err: error }, 'cannot remove what mode ipvs left; "portwide cleanup" removes all');
  }
}
