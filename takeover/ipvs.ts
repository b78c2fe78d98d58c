/**
 * Removes IPVS services, ipsets and the dummy device of the ipvs mode, Portwide's or kube-proxy's.
 */
import { cidrContains } from '../api/addresses.ts';
import { IP_FAMILIES } from '../api/objects.ts';
import { IPVS_DEVICE } from '../api/vip-device.ts';
import { isOwnService } from '../ipvs/items.ts';
import { IpvsKernel } from '../ipvs/kernel.ts';
import { allSetNames } from '../ipvs/sets.ts';
import { UnsupportedError } from '../netlink/core/error.ts';
import { Ipsets } from '../netlink/ipset/ipset.ts';
import { IpvsMissingError, type IpvsServiceKey } from '../netlink/ipvs/ipvs.ts';
import { changeAddresses, deleteLink, findLink } from '../netlink/route/links.ts';
import { listAddresses } from '../netlink/route/rtnetlink.ts';
import { aggregateErrors, type CleanupStep } from './cleanup-attempt.ts';

/** Access to the node; tests use an in-memory fake. */
const IPVS_ON_NODE = {
  hasDevice: async () => (await findLink(IPVS_DEVICE)) !== undefined,
  drainServices,
  clear: async (excludeCidrs: readonly string[]) => {
    await clearServices(excludeCidrs);
    await destroySets();
    // Delete the device last. While it exists, the next agent finds the remaining state of an
    // interrupted cleanup.
    await deleteDevice(excludeCidrs);
  },
};

/**
 * Removes all state of the ipvs mode, for an agent that takes over. The first attempt sets weight 0,
 * so that IPVS takes no new connections. The state is removed when the established connections have
 * ended. Does nothing if the device does not exist.
 * @param excludeCidrs IPVS services with these addresses belong to other programs
 * (`--ipvs-exclude-cidrs`).
 */
export function ipvsCleanup(excludeCidrs: readonly string[], node = IPVS_ON_NODE): CleanupStep {
  // IPVS services that had connections at the last check. Other services need no check: their
  // destinations have weight 0 and get no new connections.
  let busy: readonly IpvsServiceKey[] | undefined;
  return (attempt) =>
    attempt.remove('IPVS', async () => {
      if (!(await node.hasDevice())) return;
      const check = await node.drainServices(excludeCidrs, busy);
      // Check all services again after the first check: each service may have got a connection
      // before its destinations had weight 0.
      if (!check.startedDraining) busy = check.connections > 0 ? check.busy : undefined;
      if (check.startedDraining || check.connections > 0) {
        attempt.connections = check.connections;
        return;
      }
      await node.clear(excludeCidrs);
      attempt.removed.push({ device: IPVS_DEVICE });
    });
}

/**
 * Removes the dummy device, or only Portwide's addresses if the device also has addresses of other
 * programs.
 */
export function ipvsDeviceCleanup(excludeCidrs: readonly string[]): CleanupStep {
  return (attempt) => attempt.remove(`device ${IPVS_DEVICE}`, () => deleteDevice(excludeCidrs));
}

/**
 * Removes services and sets at once, even if they are in use. Call it when no rule references the
 * sets.
 */
export function ipvsServicesCleanup(excludeCidrs: readonly string[]): CleanupStep {
  return async (attempt) => {
    // Remove the services before the sets, which record the marks of Portwide's services.
    await attempt.remove('IPVS', () => clearServices(excludeCidrs));
    await attempt.remove('ipset', destroySets);
  };
}

/**
 * Sets the weight of all destinations to 0, so that services take no new connections.
 * @param among services to check; default: all that Portwide or kube-proxy created.
 * @returns the number of established connections; `busy`: services with established connections;
 * `startedDraining`: whether a destination had a weight above 0. Handshakes in flight with such a
 * destination are not counted as established yet.
 * @throws IpvsMissingError, UnsupportedError, NetlinkError
 */
async function drainServices(
  excludeCidrs: readonly string[],
  among?: readonly IpvsServiceKey[],
): Promise<{ connections: number; busy: readonly IpvsServiceKey[]; startedDraining: boolean }> {
  let connections = 0;
  let startedDraining = false;
  const busy: IpvsServiceKey[] = [];
  await forEachFamily(async (kernel) => {
    const { family } = kernel;
    const keys = among?.filter((key) => key.family === family);
    for (const key of keys ?? (await ownServices(kernel, excludeCidrs))) {
      const destinations = await kernel.destinations(key);
      const active = destinations.reduce((sum, each) => sum + each.activeConnections, 0);
      if (active > 0) busy.push(key);
      connections += active;
      const open = destinations.filter(({ weight }) => weight > 0);
      startedDraining ||= open.length > 0;
      await kernel.change(
        open.map(({ address, port }) => {
          const destination = { address, port, weight: 0 };
          return { op: 'edit-destination', key, destination };
        }),
      );
    }
  });
  return { connections, busy, startedDraining };
}

/** Removes all IPVS services of Portwide and kube-proxy. Does nothing if the kernel has no IPVS. */
async function clearServices(excludeCidrs: readonly string[]): Promise<void> {
  try {
    await forEachFamily(async (kernel) => {
      const keys = await ownServices(kernel, excludeCidrs);
      await kernel.change(keys.map((key) => ({ op: 'delete-service', key })));
    });
  } catch (error) {
    if (!(error instanceof IpvsMissingError || error instanceof UnsupportedError)) throw error;
  }
}

async function forEachFamily(work: (kernel: IpvsKernel) => Promise<void>): Promise<void> {
  for (const family of IP_FAMILIES) {
    const kernel = await IpvsKernel.open(family);
    await work(kernel).finally(() => kernel.close());
  }
}

async function ownServices(
  kernel: IpvsKernel,
  excludeCidrs: readonly string[],
): Promise<IpvsServiceKey[]> {
  const marks = new Set<number>();
  await kernel.visitEntries('KUBE-MARKS', ({ mark = 0 }) => marks.add(mark));
  const isExcluded = isExcludedBy(excludeCidrs);
  const keys = (await kernel.services()).map(({ key }) => key);
  return keys.filter((key) => isOwnService(key, (mark) => marks.has(mark), isExcluded));
}

/**
 * Deletes the device with its addresses, because removing thousands of IPv6 addresses takes the
 * kernel seconds. If the device also has addresses in `excludeCidrs`, keeps the device and these
 * addresses.
 */
async function deleteDevice(excludeCidrs: readonly string[]): Promise<void> {
  const bound = (await listAddresses()).filter((each) => each.interfaceName === IPVS_DEVICE);
  const isExcluded = isExcludedBy(excludeCidrs);
  const own = bound.map(({ address }) => address).filter((address) => !isExcluded(address));
  const link = await findLink(IPVS_DEVICE);
  if (link === undefined) return;
  if (own.length === bound.length) {
    await deleteLink(IPVS_DEVICE);
    return;
  }
  for (const { error } of await changeAddresses(link, [], own)) throw error;
}

function isExcludedBy(cidrs: readonly string[]): (address: string) => boolean {
  return (address) => cidrs.some((cidr) => cidrContains(cidr, address));
}

/**
 * Destroys the sets of both families. A set that a rule still references does not prevent the
 * removal of others.
 */
async function destroySets(): Promise<void> {
  const sets = await Ipsets.open().catch((error: unknown) => {
    if (!(error instanceof UnsupportedError)) throw error;
  });
  if (!sets) return;
  const own = new Set(IP_FAMILIES.flatMap(allSetNames));
  const failures: unknown[] = [];
  try {
    for (const { name } of await sets.list()) {
      if (own.has(name)) await sets.destroy(name).catch((error) => failures.push(error));
    }
  } finally {
    await sets.close();
  }
  if (failures.length > 0) throw aggregateErrors(failures);
}
