/** What mode ipvs left, Portwide's or kube-proxy's: services of IPVS, ipsets, and the device with the VIPs. */
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

/** What it takes of the node; tests have one in memory. */
const IPVS_ON_NODE = {
  hasDevice: async () => (await findLink(IPVS_DEVICE)) !== undefined,
  retireServices: drainServices,
  clear: async (excludeCidrs: readonly string[]) => {
    await clearServices(excludeCidrs);
    await destroySets();
    // Last: while it is there, the next start finds what an interrupted one has left.
    await deleteDevice(excludeCidrs);
  },
};

/**
 * All of it, for an agent that takes over: at once what takes new connections, and the rest, which the
 * established ones need, when these are over. Nothing on a node without the device.
 * @param excludeCidrs addresses whose services are somebody else's (`--ipvs-exclude-cidrs`).
 */
export function ipvs(excludeCidrs: readonly string[], node = IPVS_ON_NODE): CleanupStep {
  // Services that had connections at the last look: the others take no new ones.
  let busy: readonly IpvsServiceKey[] | undefined;
  return (attempt) =>
    attempt.remove('IPVS', async () => {
      if (!(await node.hasDevice())) return;
      const look = await node.retireServices(excludeCidrs, busy);
      // After the first look, the next is at all services again: any of them may have got a connection by then.
      if (!look.hasBegun) busy = look.connections > 0 ? look.busy : undefined;
      if (look.hasBegun || look.connections > 0) {
        attempt.connections = look.connections;
        return;
      }
      await node.clear(excludeCidrs);
      attempt.removed.push({ device: IPVS_DEVICE });
    });
}

export function ipvsDevice(excludeCidrs: readonly string[]): CleanupStep {
  return (attempt) => attempt.remove(`device ${IPVS_DEVICE}`, () => deleteDevice(excludeCidrs));
}

/** Services and sets, whoever uses them. When no rule names the sets any more. */
export function ipvsServices(excludeCidrs: readonly string[]): CleanupStep {
  return async (attempt) => {
    // The sets tell which marks are ours.
    await attempt.remove('IPVS', () => clearServices(excludeCidrs));
    await attempt.remove('ipset', destroySets);
  };
}

/**
 * Has the services take no new connections (weight 0).
 * @param among looks at these only; default: all that Portwide or kube-proxy made.
 * @returns how many established connections they still carry, which of them do, and whether one took new
 * connections until now: the handshakes of the latest may be under way, and do not count as established yet.
 * @throws IpvsMissingError, UnsupportedError, NetlinkError
 */
async function drainServices(
  excludeCidrs: readonly string[],
  among?: readonly IpvsServiceKey[],
): Promise<{ connections: number; busy: readonly IpvsServiceKey[]; hasBegun: boolean }> {
  let connections = 0;
  let hasBegun = false;
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
      hasBegun ||= open.length > 0;
      await kernel.change(
        open.map(({ address, port }) => {
          const destination = { address, port, weight: 0 };
          return { op: 'edit-destination', key, destination };
        }),
      );
    }
  });
  return { connections, busy, hasBegun };
}

/** Nothing where the kernel lacks what mode ipvs needs. */
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
 * The device goes with its addresses, for to remove thousands of IPv6 ones takes the kernel seconds;
 * unless somebody else has addresses there.
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

/** Of both families; one that a rule still refers to keeps no other from going. */
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
