/** All checks of `portwide check`, from the facts about a node. Pure. */
import type { RunOptions } from '../config/settings.ts';
import type { ReviewedAccess } from '../sources/kubernetes/access-review.ts';
import {
  type ClusterObjects,
  checkAccess,
  checkNode,
  checkPodCidrs,
  checkServiceCidrs,
} from './cluster.ts';
import { checkDrops, checkMasquerade } from './foreign-rules.ts';
import { checkVariants, checkXtablesLock, type RuleCounts } from './iptables.ts';
import {
  checkCapability,
  checkConntrack,
  checkIpvsModules,
  checkKernel,
  checkListeners,
  checkLocalPorts,
  checkMode,
  checkPolicySupport,
  checkStartWarnings,
  checkSysctls,
  type Listener,
  type ModeFact,
  type ModuleState,
  type StartWarning,
  type SupportedVersion,
  type Sysctls,
} from './node.ts';
import type { BaseChain } from './packet-walk.ts';
import { checkProxies, isKubeProxyRunning, type ProxyTraces, type TableNames } from './proxies.ts';
import type { CheckResult, Fact } from './result.ts';
import { healthPorts, testAddresses } from './test-addresses.ts';

/** What is known about the node and its cluster. */
export interface NodeFacts {
  readonly options: RunOptions;
  readonly nodeName: string;
  readonly objects: Fact<ClusterObjects>;
  /** undefined with --manifests. */
  readonly access: Fact<readonly ReviewedAccess[]> | undefined;
  /** CIDRs of ServiceCIDR objects. */
  readonly serviceRanges: Fact<readonly string[]>;
  readonly hasNetAdmin: boolean;
  readonly kernel: Fact<SupportedVersion>;
  readonly mode: Fact<ModeFact>;
  readonly startWarnings: readonly StartWarning[];
  /** undefined without --network-policy; otherwise why the node does not support it. */
  readonly policyProblem: Fact<string | undefined> | undefined;
  /** Modules of mode ipvs. */
  readonly modules: Fact<ReadonlyMap<string, ModuleState>>;
  readonly traces: ProxyTraces;
  readonly tableNames: TableNames;
  /** Base chains of other programs. */
  readonly foreignChains: Fact<readonly BaseChain[]>;
  readonly ruleCounts: Fact<RuleCounts>;
  readonly hasIptables: boolean;
  readonly lockProblem: string | undefined;
  readonly sysctls: Sysctls;
  readonly features: Parameters<typeof checkConntrack>[0];
  /** nf_conntrack_max that the agent sets; undefined: unchanged. */
  readonly plannedConntrackMax: number | undefined;
  readonly listeners: Fact<readonly Listener[]>;
}

const NO_OBJECTS: ClusterObjects = { node: undefined, services: [], slices: [], unreadable: [] };

/** Runs all checks, in the order of the output. */
export function evaluate(facts: NodeFacts): CheckResult[] {
  const { options, nodeName, objects, mode, traces, sysctls, foreignChains: chains } = facts;
  const modeName = 'value' in mode ? mode.value.name : options.proxyMode;
  const needsNftables = options.proxyMode === 'nftables' || options.networkPolicy;
  const known = 'value' in objects ? objects.value : NO_OBJECTS;
  const nodePorts = known.services.flatMap(({ ports }) =>
    ports.flatMap(({ nodePort }) => nodePort || []),
  );
  const addresses = testAddresses(nodeName, options, known);
  const running = {
    isAgentRunning: traces.isAgentRunning,
    isKubeProxyRunning: isKubeProxyRunning(traces),
  };
  return [
    ...checkNode(nodeName, options.manifests !== undefined, objects),
    ...(facts.access === undefined ? [] : checkAccess(facts.access)),
    ...checkCapability(facts.hasNetAdmin),
    ...checkKernel(facts.kernel, needsNftables),
    ...checkMode(mode),
    ...(modeName === 'ipvs' ? checkIpvsModules(facts.modules) : []),
    ...(facts.policyProblem === undefined ? [] : checkPolicySupport(facts.policyProblem)),
    ...checkStartWarnings(facts.startWarnings),
    ...checkPodCidrs(nodeName, options, objects, traces.interfaces),
    ...checkServiceCidrs(options, modeName, objects, facts.serviceRanges),
    ...checkProxies(traces, modeName, facts.tableNames),
    ...checkMasquerade(chains, addresses, options.networkPolicy),
    ...checkDrops(chains, addresses, healthPorts(options, known)),
    ...checkVariants(facts.ruleCounts),
    ...(facts.hasIptables ? checkXtablesLock(facts.lockProblem, modeName) : []),
    ...checkSysctls(sysctls, modeName),
    ...checkConntrack(
      facts.features,
      sysctls.get('net.netfilter.nf_conntrack_count'),
      facts.plannedConntrackMax,
    ),
    ...checkLocalPorts(sysctls, nodePorts),
    ...checkListeners(options, facts.listeners, running),
  ];
}
