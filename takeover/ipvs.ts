import { cidrContains } from '../api/addresses.ts';
import { IP_FAMILIES } from '../api/objects.ts';
import { IPVS_DEVICE } from '../api/vip-device.ts';
import { isOwnService } from '../ipvs/items.ts';
import { allSetNames, kernelName } from '../ipvs/sets.ts';
import { ENOENT, hasErrno, UnsupportedError } from '../netlink/core/error.ts';
import { Ipsets } from '../netlink/ipset/ipset.ts';
import {
  Ipvs,
  type IpvsChange,
  IpvsMissingError,
  type IpvsServiceKey,
} from '../netlink/ipvs/ipvs.ts';
import { changeAddresses, deleteLink, findLink } from '../netlink/route/links.ts';
import { listAddresses } from '../netlink/route/rtnetlink.ts';

/**
 * Removes what Portwide or kube-proxy put into IPVS. Needs the sets.
 * @param excludeCidrs addresses whose services are somebody else's (`--ipvs-exclude-cidrs`).
 * @throws NetlinkError
 */
export async function clearIpvs(excludeCidrs: readonly string[]): Promise<void> {
  let ipvs: Ipvs;
  try {
    ipvs = await Ipvs.open();
  } catch (error) {
    if (error instanceof IpvsMissingError) return;
    throw error;
  }
  try {
    const keys = await ownServices(ipvs, excludeCidrs);
    const changes = keys.map((key): IpvsChange => ({ op: 'delete-service', key }));
    for (const { error } of await ipvs.apply(changes)) throw error;
  } finally {
    await ipvs.close();
  }
}

/** What a look at services that take no new connections found. */
export interface Retiring {
  /** Established connections that they still carry. */
  readonly connections: number;
  /** The services that carry them. */
  readonly busy: readonly IpvsServiceKey[];
  /**
   * Some service took new connections until this look. The handshakes of the latest may be under way,
   * and the kernel does not count them as established yet.
   */
  readonly hasBegun: boolean;
}

/**
 * Has the services take no new connections (weight 0), for a mode that takes over from this one.
 * @param among looks at these only; default: all that Portwide or kube-proxy made.
 * @throws NetlinkError
 */
export async function retireServices(
  excludeCidrs: readonly string[],
  among?: readonly IpvsServiceKey[],
): Promise<Retiring> {
  const ipvs = await Ipvs.open();
  try {
    let connections = 0;
    let hasBegun = false;
    const busy: IpvsServiceKey[] = [];
    for (const key of among ?? (await ownServices(ipvs, excludeCidrs))) {
      const destinations = await ipvs.destinations(key);
      const active = destinations.reduce(
        (sum, { activeConnections }) => sum + activeConnections,
        0,
      );
      if (active > 0) busy.push(key);
      connections += active;
      const open = destinations.filter(({ weight }) => weight > 0);
      hasBegun ||= open.length > 0;
      // The kernel refuses none but those that went in between.
      await ipvs.apply(
        open.map(({ address, port }) => {
          const destination = { address, port, weight: 0 };
          return { op: 'edit-destination', key, destination };
        }),
      );
    }
    return { connections, busy, hasBegun };
  } finally {
    await ipvs.close();
  }
}

async function ownServices(ipvs: Ipvs, excludeCidrs: readonly string[]): Promise<IpvsServiceKey[]> {
  const isExcluded = excludedBy(excludeCidrs);
  const keys: IpvsServiceKey[] = [];
  for (const family of IP_FAMILIES) {
    const marks = new Set(await recordedMarks(kernelName('KUBE-MARKS', family)));
    for (const { key } of await ipvs.services(family)) {
      if (isOwnService(key, (mark) => marks.has(mark), isExcluded)) keys.push(key);
    }
  }
  return keys;
}

/**
 * The device goes with its addresses, for to remove thousands of IPv6 ones takes the kernel seconds;
 * unless somebody else has addresses there.
 */
export async function deleteIpvsDevice(excludeCidrs: readonly string[]): Promise<void> {
  const bound = (await listAddresses()).filter((each) => each.interfaceName === IPVS_DEVICE);
  const isExcluded = excludedBy(excludeCidrs);
  const own = bound.map(({ address }) => address).filter((address) => !isExcluded(address));
  const link = await findLink(IPVS_DEVICE);
  if (link === undefined) return;
  if (own.length === bound.length) {
    await deleteLink(IPVS_DEVICE);
    return;
  }
  for (const { error } of await changeAddresses(link, [], own)) throw error;
}

function excludedBy(cidrs: readonly string[]): (address: string) => boolean {
  return (address) => cidrs.some((cidr) => cidrContains(cidr, address));
}

/** Destroys the sets of both families; one that a rule still refers to keeps no other from going. */
export async function destroySets(): Promise<void> {
  await withSets(async (sets) => {
    const own = new Set(IP_FAMILIES.flatMap(allSetNames));
    const failures: unknown[] = [];
    for (const { name } of await sets.list()) {
      if (!own.has(name)) continue;
      await sets.destroy(name).catch((error: unknown) => failures.push(error));
    }
    if (failures.length > 0) {
      throw new AggregateError(failures, failures.map(String).join('; '), { cause: failures[0] });
    }
  });
}

async function recordedMarks(set: string): Promise<number[]> {
  const marks = await withSets(async (sets) => {
    try {
      return (await sets.entries(set)).map(({ mark = 0 }) => mark);
    } catch (error) {
      if (hasErrno(error, ENOENT)) return [];
      throw error;
    }
  });
  return marks ?? [];
}

/** undefined when the kernel has no ipset. */
async function withSets<T>(work: (sets: Ipsets) => Promise<T>): Promise<T | undefined> {
  let sets: Ipsets;
  try {
    sets = await Ipsets.open();
  } catch (error) {
    if (error instanceof UnsupportedError) return undefined;
    throw error;
  }
  try {
    return await work(sets);
  } finally {
    await sets.close();
  }
}
