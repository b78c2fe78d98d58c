/**
 * Feature gates: Portwide's own, and kube-proxy's. A gate that would change traffic in kube-proxy is an error where the
 * agent cannot do the same: a swap must not reopen what the gate closed.
 */
import { describeValue } from '../api/read-field.ts';
import { InvalidValueError, type ValueProblem } from './errors.ts';
import { HARMLESS_GATES } from './harmless-gates.ts';
import { boolean, parsePairs, pathSegment, requireObject, type ValueType } from './value-types.ts';

/** Feature gates by name: all that the agent implements, and others that were set. */
export interface FeatureGates {
  readonly AllPorts: boolean;
  /** False: `spec.externalIPs` are not served (KEP-5707). */
  readonly AllowServiceExternalIPs: boolean;
  readonly [gate: string]: boolean;
}

/** Feature gates that the agent implements, and their defaults. */
export const FEATURE_GATES: FeatureGates = { AllPorts: true, AllowServiceExternalIPs: true };

/** Kubernetes' gates for the pages /flagz and /statusz, and their defaults. */
export const PAGE_GATES: Readonly<Record<string, boolean>> = {
  ComponentFlagz: true,
  ComponentStatusz: true,
};

/** kube-proxy's gates of proxy modes, see `optionConflicts`, and of what mode nftables does. */
const MODE_GATES: readonly string[] = [
  'KubeProxyIPVS',
  'KubeProxyNFTablesLocalhostNodePorts',
  'MultiCIDRServiceAllocator',
  'NFTablesProxyMode',
];

/** Gates of kube-proxy 1.28 to 1.37 that change traffic and that the agent has always on, with the effect. */
export const ALWAYS_ON: Readonly<Record<string, string>> = {
  KubeProxyDrainingTerminatingNodes: '/healthz fails on a Node that is being deleted',
  LoadBalancerIPMode: 'load balancer IPs with ipMode Proxy are left to the load balancer',
  PreferSameTrafficDistribution: 'hints for nodes are used',
  ProxyTerminatingEndpoints: 'terminating endpoints serve if no other endpoint does',
  ServiceTrafficDistribution: 'topology hints are used without an annotation',
  TopologyAwareHints: 'topology hints are used',
};

/**
 * Accepts the gates of all of Kubernetes' components: installers pass one list to every component, and kube-proxy
 * accepts it. Like kube-proxy, the agent refuses a gate that it does not know, because the gate may change traffic.
 */
export const featureGates: ValueType<FeatureGates> = {
  argument: '<gates>',
  fromFlag: (given) =>
    gates(parsePairs(given).map(([name, value]) => [name, () => boolean.fromFlag(value)])),
  fromFile: (value, onUnknown) =>
    gates(
      requireObject(value).map(([name, each]) => [name, () => boolean.fromFile(each, onUnknown)]),
    ),
  // Omit gates at their default: kube-proxy may read this file, and rejects gates it does not know.
  toFile: (value) =>
    Object.fromEntries(
      Object.entries(value).filter(([name, isOn]) => isOn !== FEATURE_GATES[name]),
    ),
  isZero: () => false,
};

function gates(given: readonly [name: string, read: () => boolean][]): FeatureGates {
  const problems: ValueProblem[] = [];
  const values = new Map<string, boolean>(Object.entries(FEATURE_GATES));
  for (const [name, read] of given) {
    try {
      const isOn = read();
      const reason = gateProblem(name, isOn);
      if (reason === undefined) values.set(name, isOn);
      else problems.push({ at: pathSegment(name), reason });
    } catch (error) {
      if (!(error instanceof InvalidValueError)) throw error;
      problems.push({ at: pathSegment(name), reason: `${name} ${error.message}` });
    }
  }
  if (problems.length > 0) throw new InvalidValueError(problems);
  return { ...FEATURE_GATES, ...Object.fromEntries(values) };
}

function gateProblem(name: string, isOn: boolean): string | undefined {
  const effect = Object.hasOwn(ALWAYS_ON, name) ? ALWAYS_ON[name] : undefined;
  if (effect !== undefined)
    return isOn ? undefined : `${name}=false is not supported: ${effect}, always; remove the gate`;
  const isKnown =
    Object.hasOwn({ ...FEATURE_GATES, ...PAGE_GATES }, name) ||
    MODE_GATES.includes(name) ||
    HARMLESS_GATES.has(name);
  if (isKnown) return undefined;
  return `${describeValue(name)} is no feature gate of Portwide or of Kubernetes 1.28 to 1.37; correct or remove it, because a gate may change traffic`;
}
