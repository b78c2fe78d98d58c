import { IP_FAMILIES } from '../api/objects.ts';
import { ENOENT, hasErrno, UnsupportedError } from '../netlink/error.ts';
import { Ipsets } from '../netlink/ipset.ts';
import { Ipvs, type IpvsChange, IpvsMissingError } from '../netlink/ipvs.ts';
import { deleteLink } from '../netlink/links.ts';
import { IPVS_DEVICE } from './kernel.ts';
import { allSetNames, kernelName } from './sets.ts';

/**
 * Removes what Portwide or kube-proxy put into IPVS: all services of a protocol, address and port,
 * as kube-proxy does, and the fwmark services that are on record as Portwide's. Needs the sets.
 */
export async function clearIpvs(): Promise<void> {
  let ipvs: Ipvs;
  try {
    ipvs = await Ipvs.open();
  } catch (error) {
    if (error instanceof IpvsMissingError) return;
    throw error;
  }
  try {
    for (const family of IP_FAMILIES) {
      const marks = new Set(await recordedMarks(kernelName('KUBE-MARKS', family)));
      const changes = (await ipvs.services(family)).flatMap(({ key }): IpvsChange[] =>
        key.kind === 'address' || marks.has(key.mark) ? [{ op: 'delete-service', key }] : [],
      );
      for (const { error } of await ipvs.apply(changes)) throw error;
    }
  } finally {
    await ipvs.close();
  }
}

/**
 * Has the services take no new connections (weight 0), for a mode that takes over from this one.
 * @returns how many established ones they still carry. @throws NetlinkError
 */
export async function retireServices(): Promise<number> {
  let connections = 0;
  for (const family of IP_FAMILIES) {
    const marks = new Set(await recordedMarks(kernelName('KUBE-MARKS', family)));
    const ipvs = await Ipvs.open();
    try {
      for (const { key } of await ipvs.services(family)) {
        if (key.kind === 'mark' && !marks.has(key.mark)) continue;
        const destinations = await ipvs.destinations(key);
        for (const { activeConnections } of destinations) connections += activeConnections;
        // The kernel refuses none but those that went in between.
        await ipvs.apply(
          destinations
            .filter(({ weight }) => weight > 0)
            .map(({ address, port }) => {
              const destination = { address, port, weight: 0 };
              return { op: 'edit-destination', key, destination };
            }),
        );
      }
    } finally {
      await ipvs.close();
    }
  }
  return connections;
}

/** The device goes with its addresses: to remove thousands of IPv6 ones takes the kernel seconds. */
export async function deleteIpvsDevice(): Promise<void> {
  await deleteLink(IPVS_DEVICE);
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
