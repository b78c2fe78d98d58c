/** Checks whether the node supports what mode nftables and network policy require. */
import { release } from 'node:os';
import { compareText } from '../api/collections.ts';
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import { hasErrno, NO_SUBSYSTEM_ERRNOS } from '../netlink/core/error.ts';
import { encodeRule } from '../netlink/nftables/rule.ts';
import { NfTables, type NftOperation, NftRefusedError } from '../netlink/nftables/tables.ts';
import { rulePartsFor } from '../nft/rule.ts';
import { NftPlan, type NftPlanOptions } from '../nftables/plan.ts';
import { tableOperations } from '../nftables/table-operations.ts';
import type { OwnedSlices, Route, RouteMatch } from '../services/route.ts';
import { CLIENT_SEED, SLOTS } from '../traffic/consistent-hash.ts';
import { isFamilyDisabled } from './node-setup.ts';

/** kube-proxy's minimum for mode nftables. */
const MIN_KERNEL = '5.13';
export interface NftablesSupport {
  /** Supported IP families. */
  readonly families: readonly IpFamily[];
  /** The missing requirement of each unsupported family; a family disabled on the node is not listed. */
  readonly missing: ReadonlyMap<IpFamily, string>;
  /** Why rules cannot hash clients in a supported family; undefined if they can. */
  readonly hashProblem: string | undefined;
}

/** Asks the kernel whether it accepts operations on a table. @returns why not. @throws NetlinkError if the answer is unknown. */
export type KernelCheck = (
  family: IpFamily,
  operations: readonly NftOperation[],
) => Promise<string | undefined>;

/** The table of questions to the kernel, which never exists. */
const PROBE_TABLE = 'portwide-probe';

export const kernelRefusal: KernelCheck = async (family, operations) => {
  const table = new NfTables(family, PROBE_TABLE);
  try {
    await table.check(operations);
    return undefined;
  } catch (error) {
    if (error instanceof NftRefusedError) return `the kernel refuses ${error.message}`;
    if (!hasErrno(error, ...NO_SUBSYSTEM_ERRNOS)) throw error;
    return 'the kernel has no nf_tables';
  } finally {
    await table.close();
  }
};

/**
 * Checks the version of Linux, and then asks the kernel about a typical table. Changes nothing.
 * @param probe returns operations that create a typical table.
 */
export async function nftablesSupport(
  probe: (family: IpFamily) => readonly NftOperation[] = (family) => nftablesProbe(family),
  check: KernelCheck = kernelRefusal,
): Promise<NftablesSupport> {
  const tooOld = kernelTooOld(release());
  const families: IpFamily[] = [];
  const missing = new Map<IpFamily, string>();
  let hashProblem: string | undefined;
  for (const family of IP_FAMILIES) {
    if (await isFamilyDisabled(family)) continue;
    const reason = tooOld ?? (await check(family, probe(family)));
    if (reason !== undefined) {
      missing.set(family, reason);
      continue;
    }
    families.push(family);
    const refusal = await check(family, hashProbe(family));
    if (refusal !== undefined) hashProblem = `nf_tables of this node cannot hash: ${refusal}`;
  }
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

/**
 * Operations that create a table with all kinds of rules.
 * @param usesFlowtable whether the table has a flowtable.
 */
export function nftablesProbe(family: IpFamily, usesFlowtable = false): NftOperation[] {
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
  return tableOperations([...plan.chains()], elements, family);
}

/** Operations with the expression that only Services with consistent hashing need: kernel module nft_hash. */
function hashProbe(family: IpFamily): NftOperation[] {
  const { source, hashIndex } = rulePartsFor(family);
  const hash = hashIndex([source], SLOTS, CLIENT_SEED, 0);
  const rule = { expressions: encodeRule(hash.load(0)) };
  return [
    { action: 'declare', declarations: [] },
    { action: 'fill', chain: { name: 'hash', rules: [rule] } },
  ];
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
