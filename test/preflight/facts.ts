/** Facts about a healthy node, for tests that change one of them. */
import type { EndpointSlice, Node, Service } from '../../api/objects.ts';
import { DEFAULTS, type RunOptions } from '../../config/settings.ts';
import { evaluate, type NodeFacts } from '../../preflight/checks.ts';
import type { ClusterObjects } from '../../preflight/cluster.ts';
import type { ProxyTraces } from '../../preflight/proxies.ts';
import { resultsText } from '../../preflight/result.ts';

export const NODE: Node = {
  ...{ kind: 'Node', key: 'node', name: 'node', labels: {}, zone: undefined, deleting: false },
  podCIDRs: ['10.244.1.0/24'],
  addresses: ['192.168.77.10'],
  taints: [],
};

export function serviceWith(fields: Partial<Service>): Service {
  return {
    ...{ kind: 'Service', key: 'default/web', namespace: 'default', name: 'web', uid: '' },
    ...{ creationTimestamp: '', type: 'ClusterIP', headless: false, externalName: undefined },
    ...{ publishNotReadyAddresses: false, ports: [], allPorts: undefined, externalIPs: [] },
    ...{ portsAnnotation: undefined, loadBalancerIngress: [], loadBalancerSourceRanges: [] },
    ...{ externalTrafficPolicy: 'Cluster', internalTrafficPolicy: 'Cluster', affinitySeconds: 0 },
    ...{ healthCheckNodePort: 0, otherProxy: false },
    headlessLabel: false,
    clusterIPs: ['10.96.0.10'],
    ...fields,
  };
}

export function sliceOf(...endpoints: readonly (readonly [string, string])[]): EndpointSlice {
  return {
    ...{ kind: 'EndpointSlice', key: 'default/web-1', namespace: 'default', name: 'web-1' },
    ...{ serviceKey: 'default/web', headlessLabel: false, family: 'IPv4', triggerTime: undefined },
    ports: [],
    endpoints: endpoints.map(([address, nodeName]) => ({
      ...{ address, nodeName, ready: true, serving: true, terminating: false, zone: undefined },
      ...{ hostname: undefined, hintedZones: undefined, hintedNodes: undefined },
    })),
  };
}

export function objectsWith(changes: Partial<ClusterObjects>): { readonly value: ClusterObjects } {
  return { value: { node: NODE, services: [], slices: [], unreadable: [], ...changes } };
}

export function optionsWith(changes: Partial<RunOptions>): RunOptions {
  return { ...DEFAULTS, clusterCidr: ['10.244.0.0/16'], ...changes };
}

export function pins(...paths: readonly string[]): ProxyTraces['bpfPins'] {
  return { value: { paths, missing: undefined } };
}

export const HEALTHY: NodeFacts = {
  options: optionsWith({}),
  nodeName: 'node',
  objects: objectsWith({ services: [serviceWith({})] }),
  access: { value: [{ verb: 'list', group: '', resource: 'services', allowed: true }] },
  serviceRanges: { value: ['10.96.0.0/12'] },
  hasNetAdmin: true,
  kernel: { value: { version: '6.12.0', problem: undefined } },
  mode: { value: { name: 'nftables', reason: 'supported', support: { families: ['IPv4'] } } },
  startWarnings: [],
  policyProblem: undefined,
  modules: { value: new Map([['ip_vs', 'loaded']]) },
  traces: {
    processes: { value: ['kubelet'] },
    interfaces: { value: ['lo', 'eth0'] },
    serviceRules: { value: [] },
    tables: { value: [] },
    ipsets: { value: [] },
    ipvsServices: { value: 0 },
    bpfPins: pins(),
    bpfPrograms: { value: [] },
    isAgentRunning: false,
  },
  tableNames: { portwide: 'portwide', kubeProxy: 'kube-proxy' },
  foreignChains: { value: [] },
  ruleCounts: { value: { nft: 0, legacy: 0 } },
  hasIptables: true,
  lockProblem: undefined,
  sysctls: new Map([
    ['net.ipv4.ip_local_port_range', '32768\t60999'],
    ['net.ipv4.conf.all.route_localnet', '0'],
    ['net.netfilter.nf_conntrack_count', '10'],
  ]),
  features: [],
  plannedConntrackMax: 131_072,
  listeners: { value: [{ host: '0.0.0.0', port: 22 }] },
};

/** The lines of `portwide check` that are not ok, for a healthy node with these changes. */
export function problemsOf(changes: Partial<NodeFacts>): string[] {
  const problems = evaluate({ ...HEALTHY, ...changes }).filter(({ status }) => status !== 'ok');
  if (problems.length === 0) return [];
  return resultsText(problems)
    .split('\n')
    .slice(0, -2)
    .map((line) => line.replace(/ {2,}/g, ' '));
}

export const UNKNOWN = { notSeen: 'it broke' };
export const traces = (changes: Partial<NodeFacts['traces']>) => ({
  traces: { ...HEALTHY.traces, ...changes },
});
export const sysctl = (name: string, value: string) => ({
  sysctls: new Map([...HEALTHY.sysctls, [name, value]]),
});
export const mode = (name: 'nftables' | 'iptables' | 'ipvs') => ({
  mode: { value: { name, reason: '--proxy-mode', support: { families: ['IPv4'] } } } as const,
});
export const port = (nodePort: number) =>
  ({ name: '', protocol: 'TCP', port: 80, nodePort }) as const;
export const tooOld = { value: { version: '5.4', problem: 'Linux 5.4 is too old' } };
export const BRIDGE = { detectLocalMode: 'BridgeInterface', podBridgeInterface: 'cni0' } as const;

/** Title, changes of a healthy node's facts, and the pattern of each line that is not ok. */
export type Case = readonly [string, Partial<NodeFacts>, ...RegExp[]];
