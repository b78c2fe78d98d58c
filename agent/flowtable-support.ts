/** Checks whether the node supports `--nftables-flowtable`. */
import { release } from 'node:os';
import type { IpFamily } from '../api/objects.ts';
import type { NftCommand } from '../nft/command.ts';
import { isBelow, nftablesProbeScript, probeError } from './nftables-support.ts';

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

/** @returns what the node lacks; undefined if it can use flowtables. @throws ProgramTimeoutError if nft hangs. */
export async function flowtableProblem(
  nft: NftCommand,
  families: readonly IpFamily[],
  kernelRelease: string = release(),
): Promise<string | undefined> {
  const fault = brokenKernel(kernelRelease);
  if (fault !== undefined) return `${fault}; this is Linux ${kernelRelease}`;
  for (const family of families) {
    const reason = await probeError(nft, nftablesProbeScript(family, true));
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
