/** What the nftables mode and network policy take of a node, and what of it there is. */
import { release } from 'node:os';
import { compareText } from '../api/collections.ts';
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import type { NftCommand } from '../nft/command.ts';
import { NftPlan, type NftPlanOptions } from '../nftables/plan.ts';
import { TABLE } from '../nftables/static-chains.ts';
import { tableScript } from '../nftables/table-script.ts';
import { ProgramTimeoutError, runProgram, VERSION_TIMEOUT } from '../process/run-program.ts';
import type { Route } from '../services/route.ts';
import { isFamilyDisabled } from './node-setup.ts';

/** kube-proxy's, for both. */
const MIN_KERNEL = '5.13';
const MIN_NFT = '1.0.1';

export interface NftablesSupport {
  /** Those that can be served. */
  readonly families: readonly IpFamily[];
  /** What is missing for the others, in words; a family that is disabled on the node misses nothing. */
  readonly missing: ReadonlyMap<IpFamily, string>;
}

/**
 * Asks for versions, then has nft and the kernel look at a table such as it will get. Nothing is
 * changed.
 * @throws ProgramTimeoutError: nft hangs, which says nothing of what it can do.
 * @param probe a script of nft that makes such a table, under a name that nobody has.
 */
export async function nftablesSupport(
  nft: NftCommand,
  probe: (family: IpFamily) => string = nftablesProbeScript,
): Promise<NftablesSupport> {
  const lacksNft = kernelTooOld(release()) ?? (await missingNft());
  const families: IpFamily[] = [];
  const missing = new Map<IpFamily, string>();
  const look = async (family: IpFamily) => {
    if (await isFamilyDisabled(family)) return;
    const reason = lacksNft ?? (await refusal(nft, probe(family)));
    if (reason === undefined) families.push(family);
    else missing.set(family, reason);
  };
  await Promise.all(IP_FAMILIES.map(look));
  return { families: families.sort(compareText), missing };
}

/** @param kernelRelease as uname has it; one that cannot be read is left to the kernel itself. */
export function kernelTooOld(kernelRelease: string): string | undefined {
  return isBelow(MIN_KERNEL, kernelRelease)
    ? `Linux ${kernelRelease} is too old: it takes ${MIN_KERNEL}`
    : undefined;
}

/** @param output of `nft --version`: `nftables v1.0.6 (Lester Gooch #5)`. */
export function nftTooOld(output: string): string | undefined {
  const version = /v(\d+(\.\d+)*)/.exec(output)?.[1] ?? '';
  return isBelow(MIN_NFT, version) ? `nft ${version} is too old: it takes ${MIN_NFT}` : undefined;
}

function isBelow(least: string, version: string): boolean {
  if (!/^\d/.test(version)) return false;
  const [wanted, given] = [least, version].map((text) => text.split(/[^\d]/).map(Number));
  for (const [index, number] of (wanted ?? []).entries()) {
    const difference = (given?.[index] ?? 0) - number;
    if (difference !== 0) return difference < 0;
  }
  return false;
}

async function missingNft(): Promise<string | undefined> {
  try {
    return nftTooOld(await runProgram('nft', ['--version'], { timeout: VERSION_TIMEOUT }));
  } catch (error) {
    if (error instanceof ProgramTimeoutError) throw error;
    return (error as NodeJS.ErrnoException).code === 'ENOENT'
      ? 'nft is not installed (package "nftables")'
      : `nft --version failed: ${(error as Error).message}`;
  }
}

async function refusal(nft: NftCommand, script: string): Promise<string | undefined> {
  try {
    await nft.check(script);
    return undefined;
  } catch (error) {
    if (error instanceof ProgramTimeoutError) throw error;
    // nft goes on to show the lines that it means.
    return (error as Error).message.split('\n')[0];
  }
}

/**
 * A table that is not there, with everything that rules are made of. Without session affinity, for
 * nft 1.0.6 dies of it with IPv6 and does not get to see it from the agent either.
 */
export function nftablesProbeScript(family: IpFamily): string {
  const options: NftPlanOptions = {
    family,
    masqueradeAll: false,
    masqueradeBit: 14,
    localDetector: { kind: 'interface', name: 'portwide+' },
    resetsTcp: true,
    rejectsOnLocalhost: false,
    nodePortSelection: ['primary'],
    serviceCidrs: [family === 'IPv4' ? '192.0.2.0/24' : '2001:db8::/64'],
  };
  const plan = new NftPlan(options);
  plan.update([probeRoute(family, 'port'), probeRoute(family, 'ranges')], []);
  const elements = [...plan.snapshot()].flatMap((each) => each.elements);
  const script = tableScript(plan.chains(), elements, family);
  return script.replace(new RegExp(` ${TABLE}(?=[ \\n])`, 'g'), ` ${TABLE}-probe`);
}

/** With addresses that are for documentation (RFC 5737, RFC 3849). */
function probeRoute(family: IpFamily, kind: 'port' | 'ranges'): Route {
  const address = (number: number) =>
    family === 'IPv4' ? `192.0.2.${number}` : `2001:db8::${number}`;
  const ports = { protocol: 'TCP', from: 8000, to: 8009 } as const;
  const endpoints: Route['clusterEndpoints'] = [3, 4].map((number) => ({
    address: address(number),
    port: kind === 'port' ? 80 : undefined,
    isLocal: true,
  }));
  return {
    id: kind,
    serviceKey: 'portwide/probe',
    name: 'portwide/probe',
    family,
    match: kind === 'port' ? { kind, protocol: 'TCP', port: 80 } : { kind, ranges: [ports] },
    clusterIP: address(1),
    externalIPs: [],
    loadBalancerIPs: [address(2)],
    nodePort: kind === 'port' ? 30_080 : 0,
    healthCheckNodePort: 30_081,
    sourceRanges: [`${address(0)}/${family === 'IPv4' ? 24 : 64}`],
    internalLocal: false,
    externalLocal: true,
    affinitySeconds: 0,
    clusterEndpoints: endpoints,
    localEndpoints: endpoints,
    hasEndpointsAnywhere: true,
    servingEndpoints: endpoints,
    notServingEndpoints: [],
  };
}
