/** What a run does: settings from the environment, which `make test-cluster NAME=value` sets. */
import { resolve } from 'node:path';

/** `kube-proxy-<mode>`, or a mode of Portwide. */
export type Mode = `kube-proxy-${ProxyMode}` | ProxyMode;
export type ProxyMode = (typeof PROXY_MODES)[number];

export interface ClusterOptions {
  /** Directory of Kubernetes' programs; programs that it lacks come from PATH. */
  readonly bin: string;
  /** Directory of image archives (OCI or docker). */
  readonly images: string;
  readonly nodes: number;
  readonly modes: readonly Mode[];
  /** Regular expressions (RE2) of names of tests. */
  readonly focus: string;
  readonly skip: string;
  /** Image of the process that holds a pod's namespaces. */
  readonly pauseImage: string;
  /** Image of CoreDNS; empty for a cluster without DNS. */
  readonly corednsImage: string;
  /** Directory of logs, JUnit files and the table. */
  readonly report: string;
}

const PROXY_MODES = ['nftables', 'iptables', 'ipvs'] as const;

const DEFAULTS = {
  NODES: '2',
  MODES: 'kube-proxy-iptables kube-proxy-nftables nftables iptables ipvs',
  FOCUS: String.raw`\[sig-network\] (Services|EndpointSlice|Networking|Netpol|NetworkPolicy)`,
  // Serial tests stop the control plane, the others need a cloud, IPv6 or SCTP.
  SKIP: String.raw`\[(Serial|Disruptive|Flaky)\]|\[Feature:(LoadBalancer|IPv6DualStack|SCTPConnectivity|Networking-IPv[46]|NetworkingPerformance)\]`,
  PAUSE_IMAGE: 'registry.k8s.io/pause:3.10.1',
  COREDNS_IMAGE: '',
} as const;

/** kube-proxy enforces no policies, so these tests would fail with it whatever Portwide does. */
const POLICY_TESTS = String.raw`\[sig-network\] (Netpol|NetworkPolicy)`;

/** @throws Error if a value cannot be read. */
export function readOptions(
  environment: Readonly<Record<string, string | undefined>>,
  report: string,
): ClusterOptions {
  const value = (name: keyof typeof DEFAULTS) => environment[name] || DEFAULTS[name];
  const nodes = Number(value('NODES'));
  if (!Number.isInteger(nodes) || nodes < 1 || nodes > 9) {
    throw new Error(`NODES=${value('NODES')}: must be a number from 1 to 9`);
  }
  return {
    // Commands on the nodes have another working directory.
    bin: environment.KUBE_BIN ? resolve(environment.KUBE_BIN) : '',
    images: environment.IMAGES ? resolve(environment.IMAGES) : '',
    nodes,
    modes: value('MODES').split(/\s+/).filter(Boolean).map(readMode),
    focus: value('FOCUS'),
    skip: value('SKIP'),
    pauseImage: value('PAUSE_IMAGE'),
    corednsImage: value('COREDNS_IMAGE'),
    report,
  };
}

/** Mode that the proxy is configured with. */
export function proxyModeOf(mode: Mode): ProxyMode {
  return mode.replace('kube-proxy-', '') as ProxyMode;
}

export function isKubeProxy(mode: string): boolean {
  return mode.startsWith('kube-proxy-');
}

/** Tests that a mode leaves out. */
export function skipFor(mode: Mode, skip: string): string {
  return isKubeProxy(mode) ? `${skip}|${POLICY_TESTS}` : skip;
}

function readMode(text: string): Mode {
  const mode = PROXY_MODES.find((each) => each === text || `kube-proxy-${each}` === text);
  if (mode === undefined) {
    throw new Error(
      `MODES: unknown mode ${text}; use ${PROXY_MODES.join(', ')}, each also as kube-proxy-MODE`,
    );
  }
  return text as Mode;
}
