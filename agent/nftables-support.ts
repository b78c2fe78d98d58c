/** Checks whether the node supports what mode nftables and network policy require. */
import { release } from 'node:os';
import { compareText } from '../api/collections.ts';
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import type { NftCommand } from '../nft/command.ts';
import { nftFamily } from '../nft/rule.ts';
import { NftPlan, type NftPlanOptions } from '../nftables/plan.ts';
import { TABLE } from '../nftables/static-chains.ts';
import { writableTableScript } from '../nftables/table-script.ts';
import { ProgramTimeoutError, runProgram, VERSION_TIMEOUT } from '../process/run-program.ts';
import type { OwnedSlices, Route, RouteMatch } from '../services/route.ts';
import { CLIENT_SEED, SLOTS } from '../traffic/consistent-hash.ts';
import { isFamilyDisabled } from './node-setup.ts';

/** kube-proxy's minimum for mode nftables. */
const MIN_KERNEL = '5.13';
/**
 * The oldest version that is tested. kube-proxy requires 1.0.1, but nft 1.0.2 refuses endpoint numbers in concatenated
 * keys ("variable sized data types").
 */
const MIN_NFT = '1.0.6';

export interface NftablesSupport {
  /** Supported IP families. */
  readonly families: readonly IpFamily[];
  /** The missing requirement of each unsupported family; a family disabled on the node is not listed. */
  readonly missing: ReadonlyMap<IpFamily, string>;
  /** Why rules cannot hash clients in a supported family; undefined if they can. */
  readonly hashProblem: string | undefined;
}

/**
 * Checks the versions of Linux and nft, and then a typical table with `nft --check`. Changes nothing.
 * @param probe returns an nft script that creates a typical table under an unused name.
 * @throws ProgramTimeoutError if nft hangs; the support is then unknown.
 */
export async function nftablesSupport(
  nft: NftCommand,
  probe: (family: IpFamily) => string = (family) => nftablesProbeScript(family),
): Promise<NftablesSupport> {
  const tooOld = kernelTooOld(release()) ?? (await nftProblem());
  const families: IpFamily[] = [];
  const missing = new Map<IpFamily, string>();
  let hashProblem: string | undefined;
  const missingIn = async (family: IpFamily): Promise<string | undefined> => {
    const reason = await probeError(nft, `${probe(family)}\n${hashProbeScript(family)}`);
    if (reason === undefined) return undefined;
    const withoutHash = await probeError(nft, probe(family));
    if (withoutHash === undefined) hashProblem = `nf_tables of this node cannot hash: ${reason}`;
    return withoutHash;
  };
  const probeFamily = async (family: IpFamily) => {
    if (await isFamilyDisabled(family)) return;
    const reason = tooOld ?? (await missingIn(family));
    if (reason === undefined) families.push(family);
    else missing.set(family, reason);
  };
  await Promise.all(IP_FAMILIES.map(probeFamily));
  return { families: families.sort(compareText), missing, hashProblem };
}

/**
 * @param kernelRelease the release in uname. A release that cannot be parsed is not rejected.
 * @returns the problem; undefined if the version is supported.
 */
export function kernelTooOld(kernelRelease: string): string | undefined {
  return isBelow(MIN_KERNEL, kernelRelease)
    ? `Linux ${kernelRelease} is too old: ${MIN_KERNEL} or later is required`
    : undefined;
}

/**
 * @param output the output of `nft --version`: `nftables v1.0.6 (Lester Gooch #5)`.
 * @returns the problem; undefined if the version is supported.
 */
export function nftTooOld(output: string): string | undefined {
  const version = /v(\d+(\.\d+)*)/.exec(output)?.[1] ?? '';
  return isBelow(MIN_NFT, version)
    ? `nft ${version} is too old: ${MIN_NFT} or later is required`
    : undefined;
}

/** Whether a version, such as the release in uname, is below a minimum. A version that cannot be parsed is not. */
export function isBelow(minimum: string, version: string): boolean {
  if (!/^\d/.test(version)) return false;
  const [required, actual] = [minimum, version].map((text) => text.split(/[^\d]/).map(Number));
  for (const [index, number] of (required ?? []).entries()) {
    const difference = (actual?.[index] ?? 0) - number;
    if (difference !== 0) return difference < 0;
  }
  return false;
}

async function nftProblem(): Promise<string | undefined> {
  try {
    return nftTooOld(await runProgram('nft', ['--version'], { timeout: VERSION_TIMEOUT }));
  } catch (error) {
    if (error instanceof ProgramTimeoutError) throw error;
    return (error as NodeJS.ErrnoException).code === 'ENOENT'
      ? 'nft is not installed (package "nftables")'
      : `nft --version failed: ${(error as Error).message}`;
  }
}

export async function probeError(nft: NftCommand, script: string): Promise<string | undefined> {
  try {
    await nft.check(script);
    return undefined;
  } catch (error) {
    if (error instanceof ProgramTimeoutError) throw error;
    // The other lines of nft's output quote the script.
    return (error as Error).message.split('\n')[0];
  }
}

/**
 * A script that creates the table `portwide-probe` with typical rules. It lacks rules that the agent writes over
 * netlink.
 * @param usesFlowtable whether the table has a flowtable.
 */
export function nftablesProbeScript(family: IpFamily, usesFlowtable = false): string {
  const options: NftPlanOptions = {
    family,
    masqueradeAll: false,
    masqueradeBit: 14,
    localDetector: { kind: 'interface', name: 'portwide+' },
    resetsTcp: true,
    rejectsOnLocalhost: false,
    nodePortSelection: ['primary'],
    serviceCidrs: [family === 'IPv4' ? '192.0.2.0/24' : '2001:db8::/64'],
    usesFlowtable,
  };
  const plan = new NftPlan(options);
  plan.update([portRoute(family), rangesRoute(family), ownedRoute(family)], []);
  const elements = [...plan.snapshot()].flatMap((each) => each.elements);
  const script = writableTableScript(plan.chains(), elements, family);
  return script.replace(new RegExp(` ${TABLE}(?=[ \\n])`, 'g'), ` ${TABLE}-probe`);
}

/** A script with the expression that only Services with consistent hashing need: kernel module nft_hash. */
function hashProbeScript(family: IpFamily): string {
  const ip = nftFamily(family);
  const rule = `meta mark set jhash ${ip} saddr mod ${SLOTS} seed ${CLIENT_SEED}`;
  return `table ${ip} ${TABLE}-hash-probe { chain hash { ${rule}; }; }`;
}

/** An address reserved for documentation (RFC 5737, RFC 3849). */
function probeAddress(family: IpFamily, number: number): string {
  return family === 'IPv4' ? `192.0.2.${number}` : `2001:db8::${number}`;
}

const RANGES = [{ protocol: 'TCP', from: 8000, to: 8009 }] as const;
const OWNED_RANGES = [{ protocol: 'UDP', from: 20_000, to: 20_009 }] as const;

function portRoute(family: IpFamily): Route {
  return {
    ...probeRoute(family, { kind: 'port', protocol: 'TCP', port: 80 }, 80),
    nodePort: 30_080,
  };
}

function rangesRoute(family: IpFamily): Route {
  return probeRoute(family, { kind: 'ranges', ranges: RANGES });
}

function ownedRoute(family: IpFamily): Route {
  const route = probeRoute(family, { kind: 'ranges', ranges: OWNED_RANGES });
  const owned: OwnedSlices = {
    ranges: OWNED_RANGES,
    portsPerPod: 10,
    owners: [{ ordinal: 0, address: probeAddress(family, 3), serves: true, node: 'unknown' }],
    udpVip: probeAddress(family, 2),
    priority: '',
    taken: new Map(),
  };
  return { ...route, id: 'owned', owned };
}

function probeRoute(family: IpFamily, match: RouteMatch, port?: number): Route {
  const endpoints = [3, 4].map((number) => ({
    address: probeAddress(family, number),
    port,
    isLocal: true,
  }));
  return {
    id: match.kind,
    serviceKey: 'portwide/probe',
    name: 'portwide/probe',
    family,
    match,
    clusterIP: probeAddress(family, 1),
    externalIPs: [],
    loadBalancerIPs: [probeAddress(family, 2)],
    nodePort: 0,
    healthCheckNodePort: 30_081,
    sourceRanges: [`${probeAddress(family, 0)}/${family === 'IPv4' ? 24 : 64}`],
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
