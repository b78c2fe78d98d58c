/** route_localnet, which mode iptables sets to 1, and KUBE-FIREWALL, which keeps neighbours from 127.0.0.0/8 then. */
import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import type { IpFamily } from '../api/objects.ts';
import { FIREWALL } from '../iptables/chains.ts';
import { VARIANTS, type Variant } from '../iptables/commands.ts';
import { hasKubelet, iptablesTables, savedTable } from '../iptables/variant.ts';
import type { Log } from '../process/log.ts';

const ROUTE_LOCALNET = '/proc/sys/net/ipv4/conf/all/route_localnet';

/** route_localnet cannot be set back, as in a container that is not privileged. */
export class RouteLocalnetError extends Error {
  override readonly name = 'LocalnetOpenError';
  readonly sysctl = 'net.ipv4.conf.all.route_localnet';

  constructor(cause: Error) {
    super(
      `KUBE-FIREWALL stays and keeps neighbours from 127.0.0.0/8: net.ipv4.conf.all.route_localnet cannot be set back to 0: ${cause.message}`,
      { cause },
    );
  }

  /** Harmless: what neighbours send there is dropped, as it was before. */
  warn(log: Log): void {
    log.warn(
      { sysctl: this.sysctl, err: this },
      'all that mode iptables left is removed but KUBE-FIREWALL, which keeps neighbours from 127.0.0.0/8 while route_localnet is 1; ' +
        'Services are not concerned. A new pod sets it back in its init container ("portwide run --init-only")',
    );
  }
}

/** Whether packets from neighbours to 127.0.0.0/8 are let in, but for rules that drop them. */
export async function isRouteLocalnetEnabled(): Promise<boolean> {
  return existsSync(ROUTE_LOCALNET) && (await readFile(ROUTE_LOCALNET, 'utf8')).trim() === '1';
}

/**
 * Whether KUBE-FIREWALL is there and no kubelet's.
 * @param saved output of `iptables-save -t TABLE`.
 */
export async function hasOwnFirewall(
  family: IpFamily,
  variant: Variant,
  saved: string,
): Promise<boolean> {
  if (!saved.includes(`\n:${FIREWALL} `)) return false;
  const tables = await iptablesTables(family, variant);
  return !tables.includes('mangle') || !hasKubelet(await savedTable(family, variant, 'mangle'));
}

/** @returns why route_localnet is still 1. */
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
 * Sets route_localnet back, for a mode that does not serve node ports on 127.0.0.1, where the rules of
 * mode iptables guard it and the kubelet's do not. These go when the agent serves.
 * @returns whether it was on.
 * @throws LocalnetOpenError, ProgramTimeoutError, ExecaError
 */
export async function disableUnneededRouteLocalnet(): Promise<boolean> {
  for (const variant of VARIANTS) {
    if (!(await isRouteLocalnetEnabled())) return false;
    if (!(await iptablesTables('IPv4', variant)).includes('filter')) continue;
    const saved = await savedTable('IPv4', variant, 'filter');
    if (!(await hasOwnFirewall('IPv4', variant, saved))) continue;
    const open = await disableRouteLocalnet();
    if (open !== undefined) throw open;
    return true;
  }
  return false;
}
