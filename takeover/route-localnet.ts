/**
 * The sysctl route_localnet, which the iptables mode sets to 1, and KUBE-FIREWALL, which then
 * protects 127.0.0.0/8 from neighbours.
 */
import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { FIREWALL, hasKubeletChain, type Table } from '../iptables/chains.ts';
import { VARIANTS } from '../iptables/commands.ts';
import { type ChainNames, chainNames } from '../iptables/variant.ts';
import type { Log } from '../process/log.ts';

const ROUTE_LOCALNET = '/proc/sys/net/ipv4/conf/all/route_localnet';

/** route_localnet cannot be set to 0, for example in a container that is not privileged. */
export class RouteLocalnetError extends Error {
  override readonly name = 'RouteLocalnetError';
  readonly reason = 'sysctl';
  readonly sysctl = 'net.ipv4.conf.all.route_localnet';

  constructor(cause: Error) {
    super(
      `cannot set net.ipv4.conf.all.route_localnet to 0, so KUBE-FIREWALL stays: ${cause.message}`,
      { cause },
    );
  }

  /**
   * Logs that KUBE-FIREWALL stays. This is harmless: the chain still drops packets from neighbours
   * to 127.0.0.0/8.
   */
  warn(log: Log): void {
    log.warn(
      {
        sysctl: this.sysctl,
        err: this,
        effect:
          'KUBE-FIREWALL drops packets from neighbours to 127.0.0.0/8; Services are not affected',
        hint: 'recreate the pod: its init container (portwide run --init-only) sets route_localnet to 0',
      },
      'keeping chain KUBE-FIREWALL while route_localnet is 1',
    );
  }
}

/**
 * Whether net.ipv4.conf.all.route_localnet is 1. The kernel then accepts packets from neighbours to
 * 127.0.0.0/8, unless rules drop these packets.
 */
export async function isRouteLocalnetEnabled(): Promise<boolean> {
  return existsSync(ROUTE_LOCALNET) && (await readFile(ROUTE_LOCALNET, 'utf8')).trim() === '1';
}

/** Whether KUBE-FIREWALL exists in a table and is not shared with a kubelet. @param chains of one variant. */
export function hasOwnFirewall(chains: ChainNames, table: Table): boolean {
  const hasFirewall = chains.get(table)?.includes(FIREWALL) === true;
  return hasFirewall && !hasKubeletChain(chains.get('mangle') ?? []);
}

/**
 * Sets route_localnet to 0.
 * @returns the error if route_localnet stays 1; undefined if it is 0.
 */
export async function disableRouteLocalnet(): Promise<RouteLocalnetError | undefined> {
  if (!(await isRouteLocalnetEnabled())) return undefined;
  try {
    await writeFile(ROUTE_LOCALNET, '0');
    return undefined;
  } catch (error) {
    return new RouteLocalnetError(error as Error);
  }
}

/**
 * Sets route_localnet to 0, for a mode that does not serve node ports on 127.0.0.1. Does nothing
 * unless KUBE-FIREWALL exists and no kubelet uses it: the takeover removes this chain of the
 * iptables mode, which protects 127.0.0.0/8.
 * @returns whether route_localnet was changed from 1 to 0.
 * @throws RouteLocalnetError, NetlinkError
 */
export async function disableUnneededRouteLocalnet(): Promise<boolean> {
  for (const variant of VARIANTS) {
    if (!(await isRouteLocalnetEnabled())) return false;
    if (!hasOwnFirewall(await chainNames('IPv4', variant), 'filter')) continue;
    const localnetError = await disableRouteLocalnet();
    if (localnetError !== undefined) throw localnetError;
    return true;
  }
  return false;
}
