/** Collects the facts of `portwide check`, with the agent's own code where it has some. Changes nothing. */
import { readFile } from 'node:fs/promises';
import { cpus } from 'node:os';
import type { RunOptions } from '../../config/settings.ts';
import { iptablesCommands, isMissing, type Variant } from '../../iptables/commands.ts';
import { TABLE } from '../../nftables/static-chains.ts';
import type { NodeFacts } from '../../preflight/checks.ts';
import type { ClusterObjects } from '../../preflight/cluster.ts';
import type { ModeFact, StartWarning } from '../../preflight/node.ts';
import type { Fact } from '../../preflight/result.ts';
import { hasNetAdmin } from '../../process/capabilities.ts';
import type { Log } from '../../process/log.ts';
import { KUBE_PROXY_TABLE } from '../../takeover/nft-tables.ts';
import { configWarnings } from '../config-warnings.ts';
import { conntrackMax } from '../conntrack-settings.ts';
import { kernelFeatures } from '../kernel-features.ts';
import { nodePortSelectionOf } from '../mode.ts';
import {
  effectiveNodeName,
  warnOfBridge,
  warnOfForwarding,
  warnOfStrictConntrack,
} from '../node-setup.ts';
import { readAccess, readObjects, readServiceRanges } from './cluster-facts.ts';
import { fact } from './fact.ts';
import {
  keepingLog,
  kernelVersion,
  readListenersOfNode,
  readMode,
  readModules,
  readPolicyProblem,
  readSysctls,
  xtablesLockProblem,
} from './node-facts.ts';
import { readIptables, readNftChains } from './rule-facts.ts';
import { readTraces } from './traces.ts';

/** Collects the facts. A fact that cannot be read has its reason instead. */
export async function collectFacts(options: RunOptions): Promise<NodeFacts> {
  const nodeName = effectiveNodeName(options);
  const objects = await fact(() => readObjects(options, nodeName));
  const isFromManifests = options.manifests !== undefined;
  const keeping = keepingLog();
  const mode = await fact(() => readMode(options, keeping));
  await warnLikeAgent(options, mode, objects, keeping.log);
  const iptables = await fact(readIptables);
  return {
    options,
    nodeName,
    objects,
    access: isFromManifests ? undefined : await fact(() => readAccess(options, nodeName)),
    serviceRanges: await fact(() => readServiceRanges(options)),
    hasNetAdmin: hasNetAdmin(await readFile('/proc/self/status', 'utf8')),
    kernel: await fact(async () => kernelVersion()),
    mode,
    startWarnings: [...keeping.warnings, ...configurationWarnings(options, mode, objects)],
    policyProblem: await readPolicyProblem(options),
    modules: await fact(() => readModules(options.ipvsScheduler)),
    traces: await readTraces(),
    tableNames: { portwide: TABLE, kubeProxy: KUBE_PROXY_TABLE },
    foreignChains: await fact(async () => {
      if ('notSeen' in iptables) throw new Error(iptables.notSeen);
      const { chains, read, unread } = iptables.value;
      // Rules of iptables-nft are in nf_tables.
      if (unread.has('legacy')) throw notInstalled('legacy');
      return [...chains, ...(await readNftChains(read))];
    }),
    ruleCounts: await fact(async () => {
      if ('notSeen' in iptables) throw new Error(iptables.notSeen);
      const { counts, unread } = iptables.value;
      const [missing] = unread;
      if (missing !== undefined) throw notInstalled(missing);
      return counts;
    }),
    hasIptables: !isMissing(await failureOf(iptablesCommands('IPv4', 'nft').version())),
    lockProblem: await xtablesLockProblem(),
    sysctls: await readSysctls(),
    features: await kernelFeatures(),
    plannedConntrackMax: conntrackMax(options, cpus().length),
    listeners: await fact(readListenersOfNode),
  };
}

function notInstalled(variant: Variant): Error {
  return new Error(`rules of iptables-${variant}: iptables is not installed`);
}

/** Why a promise rejects; undefined if it does not. */
async function failureOf(promise: Promise<unknown>): Promise<unknown> {
  try {
    await promise;
    return undefined;
  } catch (error) {
    return error;
  }
}

/** Logs the agent's warnings about sysctls. */
async function warnLikeAgent(
  options: RunOptions,
  mode: Fact<ModeFact>,
  objects: Fact<ClusterObjects>,
  log: Log,
): Promise<void> {
  const addresses = 'value' in objects ? (objects.value.node?.addresses ?? []) : [];
  await warnOfForwarding(addresses, log);
  if ('value' in mode && 'families' in mode.value.support) {
    await warnOfBridge(mode.value.support.families, log);
  }
  if (options.resetDeletedEndpointConnections) await warnOfStrictConntrack(log);
}

function configurationWarnings(
  options: RunOptions,
  mode: Fact<ModeFact>,
  objects: Fact<ClusterObjects>,
): StartWarning[] {
  if ('notSeen' in mode) return [];
  const node = 'value' in objects ? objects.value.node : undefined;
  const nodePorts = nodePortSelectionOf(mode.value.name, options);
  return configWarnings({ options, nodePorts, node }).map(({ message, ...details }) => ({
    message,
    details,
  }));
}
