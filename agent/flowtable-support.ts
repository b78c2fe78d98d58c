/** Checks whether the node supports `--nftables-flowtable`, and describes what it does, for the status API. */
import { release } from 'node:os';
import { compareText } from '../api/collections.ts';
import type { IpFamily } from '../api/objects.ts';
import type { FlowtableInterfaces } from '../nftables/flowtable-devices.ts';
import type { KernelFeature } from '../status/api/node-status.ts';
import { isBelow, type KernelCheck, kernelRefusal, nftablesProbe } from './nftables-support.ts';

/** Releases of Linux whose flowtables lose connections; `until` is the first without the fault. */
const BROKEN_KERNELS = [
  {
    from: '0',
    until: '6.1',
    fault: 'flowtables of Linux before 6.1 are not tested',
  },
  {
    // 03428ca5cee9 ("rework offload nf_conn timeout extension logic"), repaired by 53b3e60edb67. Some stable releases
    // of earlier versions have the repair too.
    from: '6.14',
    until: '7.2',
    fault: 'Linux 6.14 to 7.1 may forget long connections in flowtables',
  },
] as const;

/** @returns what the node lacks; undefined if it can use flowtables. @throws NetlinkError */
export async function flowtableProblem(
  families: readonly IpFamily[],
  check: KernelCheck = kernelRefusal,
  kernelRelease: string = release(),
): Promise<string | undefined> {
  const fault = brokenKernel(kernelRelease);
  if (fault !== undefined) return `${fault}; this is Linux ${kernelRelease}`;
  for (const family of families) {
    const reason = await check(family, nftablesProbe(family, true));
    if (reason !== undefined) return `nf_tables of this node has no flowtables: ${reason}`;
  }
  return undefined;
}

/** @param kernelRelease the release in uname. A release that cannot be parsed is not broken. */
export function brokenKernel(kernelRelease: string): string | undefined {
  return BROKEN_KERNELS.find(
    ({ from, until }) => !isBelow(from, kernelRelease) && isBelow(until, kernelRelease),
  )?.fault;
}

/**
 * @param problem the result of `flowtableProblem`, if the flag is set.
 * @param interfaces undefined while there is no flowtable.
 */
export function flowtableFeature(
  isRequested: boolean,
  problem: string | undefined,
  interfaces: FlowtableInterfaces | undefined,
): KernelFeature {
  const feature = (value: string, ok: boolean, note: string) => ({
    name: '--nftables-flowtable',
    value,
    ok,
    note,
  });
  if (!isRequested) return feature('off', true, '');
  if (problem !== undefined)
    return feature('refused', true, `${problem}; all packets take the rules`);
  if (interfaces === undefined)
    return feature('waits', true, 'all packets take the rules until the next full sync');
  const { attached, refused } = interfaces;
  // Pods have one veth pair each: their names say little.
  const veths = attached.filter(({ kind }) => kind === 'veth').length;
  const others = attached.filter(({ kind }) => kind !== 'veth').map(({ name }) => name);
  const names = [...others.sort(compareText), `${veths} veth`];
  const note =
    refused.length === 0
      ? 'established connections of Services between these interfaces bypass the rules'
      : `the kernel refuses ${refused.join(', ')}: their packets take the rules`;
  return feature(`on: ${names.join(', ')}`, true, note);
}
