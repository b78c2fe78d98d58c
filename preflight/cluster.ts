/** Checks of the API server and of the cluster: Node, permissions, pod CIDRs and Service CIDRs. */
import { cidrContains, familyOf } from '../api/addresses.ts';
import { compareText } from '../api/collections.ts';
import { type EndpointSlice, IP_FAMILIES, type Node, type Service } from '../api/objects.ts';
import type { ProxyMode } from '../config/node-settings.ts';
import type { NodeOptions } from '../config/settings.ts';
import { otherAddressesIn } from '../services/service-cidrs.ts';
import type { Access, ReviewedAccess } from '../sources/kubernetes/access-review.ts';
import { type CheckResult, type Fact, fail, notSeen, ok, warn } from './result.ts';

/** Objects of the source. */
export interface ClusterObjects {
  /** The Node of this node; undefined if it does not exist. */
  readonly node: Node | undefined;
  readonly services: readonly Service[];
  readonly slices: readonly EndpointSlice[];
  /** Objects that cannot be read, with the reason. */
  readonly unreadable: readonly string[];
}

/** Lines about single objects that are printed. */
const MAX_SHOWN = 3;

/** The API server answers, and the Node exists. */
export function checkNode(
  nodeName: string,
  isFromManifests: boolean,
  objects: Fact<ClusterObjects>,
): CheckResult[] {
  const source = isFromManifests ? 'manifests' : 'API server';
  if ('notSeen' in objects) {
    const action = isFromManifests
      ? 'correct --manifests'
      : 'check --kubeconfig, --master and the network from this node to the API server';
    return [fail(source, objects.notSeen, action)];
  }
  const { node, services, unreadable } = objects.value;
  const read = ok(source, `lists ${services.length} Services`);
  const results = [read, nodeResult(nodeName, isFromManifests, node)];
  if (unreadable.length > 0) {
    const action = '`portwide validate` shows faults of manifests; correct the objects';
    results.push(warn('unreadable objects', shortList(unreadable), action));
  }
  return results;
}

function nodeResult(name: string, isFromManifests: boolean, node: Node | undefined): CheckResult {
  const title = 'node object';
  if (node === undefined) {
    const action = 'set --hostname-override to the name of this node in `kubectl get nodes`';
    const seen = `no Node "${name}"`;
    return isFromManifests
      ? warn(title, seen, `add the Node, or ${action}`)
      : fail(title, seen, action);
  }
  if (node.addresses.length === 0) {
    const action = 'wait for the kubelet, or set --bind-address';
    return warn(title, `Node "${name}" has no addresses`, action);
  }
  return ok(title, `Node "${name}" has addresses ${node.addresses.join(', ')}`);
}

/** The API server allows all requests of the agent. */
export function checkAccess(access: Fact<readonly ReviewedAccess[]>): CheckResult[] {
  if ('notSeen' in access) return [notSeen('RBAC', access)];
  const denied = Map.groupBy(
    access.value.filter(({ allowed }) => !allowed),
    (each) => resourceOf(each),
  );
  if (denied.size === 0) return [ok('RBAC', `all ${access.value.length} requests are allowed`)];
  return [...denied].map(([resource, requests]) => {
    const verbs = requests.map(({ verb }) => verb).join(', ');
    const group = requests[0]?.group ?? '';
    const seen = `not allowed: ${verbs} ${resource}`;
    // Without Events and ServiceCIDRs the agent serves Services all the same.
    if (group === 'events.k8s.io' || requests[0]?.resource === 'servicecidrs')
      return warn('RBAC', seen, 'bind the ClusterRole portwide');
    const role = isPolicyResource(requests) ? 'portwide-network-policy' : 'portwide';
    return fail('RBAC', seen, `apply and bind ClusterRole ${role}, which has this rule`);
  });
}

/** Whether the base role lacks the resource, so that the role of network policy grants it. */
function isPolicyResource(requests: readonly Access[]): boolean {
  const base = ['services', 'nodes', 'endpointslices'];
  return requests.every(({ resource }) => !base.includes(resource));
}

function resourceOf({ group, resource }: Access): string {
  return group === '' ? resource : `${resource}.${group}`;
}

/** The way to detect local pods fits the Node, its interfaces and its endpoints. */
export function checkPodCidrs(
  nodeName: string,
  options: Pick<
    NodeOptions,
    'detectLocalMode' | 'clusterCidr' | 'podBridgeInterface' | 'podInterfaceNamePrefix'
  >,
  objects: Fact<ClusterObjects>,
  interfaces: Fact<readonly string[]>,
): CheckResult[] {
  const name = 'local pods';
  const { detectLocalMode, clusterCidr } = options;
  const setting = `--detect-local-mode=${detectLocalMode}`;
  if (detectLocalMode === 'BridgeInterface' || detectLocalMode === 'InterfaceNamePrefix') {
    if ('notSeen' in interfaces) return [notSeen(name, interfaces)];
    const prefix = options.podInterfaceNamePrefix ?? '';
    const isBridge = detectLocalMode === 'BridgeInterface';
    const wanted = isBridge ? `interface ${options.podBridgeInterface}` : `interface ${prefix}*`;
    const isFound = interfaces.value.some((each) =>
      isBridge ? each === options.podBridgeInterface : each.startsWith(prefix),
    );
    if (isFound) return [ok(name, `${setting}: ${wanted} exists`)];
    const action = 'correct the name, unless the CNI creates it with the first pod';
    return [warn(name, `${setting}: no ${wanted}`, action)];
  }
  if ('notSeen' in objects) return [notSeen(name, { notSeen: 'no objects could be read' })];
  const podCidrs = objects.value.node?.podCIDRs ?? [];
  if (detectLocalMode === 'NodeCIDR') {
    if (podCidrs.length === 0) {
      const action =
        'without pod CIDRs the agent does not start: use --detect-local-mode=ClusterCIDR';
      return [fail(name, `${setting}: the Node has no pod CIDRs`, action)];
    }
    const seen = `${setting}: ${podCidrs.join(', ')}`;
    const uncovered = uncoveredFamilies(seen, podCidrs, objects.value, 'give the Node a CIDR');
    return uncovered.length > 0 ? uncovered : [ok(name, seen)];
  }
  // `configWarnings` reports an unset --cluster-cidr.
  if (clusterCidr.length === 0) return [];
  const outside = outsideCidrs(clusterCidr, podCidrs, localPodAddresses(nodeName, objects.value));
  const seen = `--cluster-cidr=${clusterCidr.join(',')}`;
  const problems = uncoveredFamilies(seen, clusterCidr, objects.value, 'add the pod CIDR');
  if (outside.length > 0) {
    const action =
      "set --cluster-cidr to the cluster's pod CIDR: connections of other pods to cluster IPs are masqueraded";
    problems.unshift(
      fail(name, `${seen} does not contain ${shortList(outside)} of this node`, action),
    );
  }
  return problems.length > 0 ? problems : [ok(name, seen)];
}

/**
 * Families that the cluster uses and that no CIDR covers. As in kube-proxy, pods of such a family are not detected, and
 * connections to its cluster IPs are never masqueraded.
 */
function uncoveredFamilies(
  seen: string,
  cidrs: readonly string[],
  { node, services }: ClusterObjects,
  advice: string,
): CheckResult[] {
  return IP_FAMILIES.filter((family) => !cidrs.some((cidr) => familyOf(cidr) === family)).flatMap(
    (family) => {
      const used = [
        ...(node?.podCIDRs ?? []).map((cidr) => ({ address: cidr, text: `pod CIDR ${cidr}` })),
        ...services.flatMap(({ clusterIPs, key }) =>
          clusterIPs.map((ip) => ({ address: ip, text: `cluster IP ${ip} (${key})` })),
        ),
      ].filter(({ address }) => familyOf(address) === family);
      if (used.length === 0) return [];
      const examples = shortList(used.map(({ text }) => text));
      const action = `${advice} of this family: otherwise clients outside the cluster cannot use its cluster IPs`;
      return [
        warn('local pods', `${seen} has no ${family} CIDR, but there is ${examples}`, action),
      ];
    },
  );
}

function outsideCidrs(
  cidrs: readonly string[],
  podCidrs: readonly string[],
  addresses: readonly string[],
): string[] {
  const isOutside = (address: string) => {
    const ofFamily = cidrs.filter((cidr) => familyOf(cidr) === familyOf(address));
    return ofFamily.length > 0 && !ofFamily.some((cidr) => cidrContains(cidr, address));
  };
  const networks = podCidrs.filter((cidr) => isOutside(cidr.split('/')[0] ?? ''));
  return networks.length > 0
    ? networks.map((cidr) => `pod CIDR ${cidr}`)
    : addresses.filter(isOutside);
}

/** Addresses of endpoints on this node, except addresses of the node itself (host network). */
function localPodAddresses(nodeName: string, { node, slices }: ClusterObjects): string[] {
  const addresses = slices.flatMap(({ endpoints }) =>
    endpoints.filter((each) => each.nodeName === nodeName).map(({ address }) => address),
  );
  const own = new Set(node?.addresses ?? []);
  return [...new Set(addresses)].filter((address) => !own.has(address)).sort(compareText);
}

/**
 * `--service-cidrs` contains the cluster IPs and nothing else.
 * @param ranges CIDRs of the ServiceCIDR objects.
 */
export function checkServiceCidrs(
  { serviceCidrs, clusterCidr }: Pick<NodeOptions, 'serviceCidrs' | 'clusterCidr'>,
  mode: ProxyMode | undefined,
  objects: Fact<ClusterObjects>,
  ranges: Fact<readonly string[]>,
): CheckResult[] {
  const name = 'Service CIDRs';
  const shown =
    'notSeen' in ranges
      ? `ServiceCIDR objects not seen (${ranges.notSeen})`
      : `ServiceCIDRs: ${ranges.value.join(', ')}`;
  if (serviceCidrs.length === 0 || mode !== 'nftables') {
    const unused =
      serviceCidrs.length === 0
        ? '--service-cidrs is not set'
        : `mode ${mode} does not use --service-cidrs`;
    return [ok(name, `${unused}; ${shown}`)];
  }
  if ('notSeen' in objects) return [notSeen(name, { notSeen: 'no objects could be read' })];
  const { node, services } = objects.value;
  const contains = (address: string) => serviceCidrs.some((cidr) => cidrContains(cidr, address));
  const others = {
    nodeAddresses: node?.addresses ?? [],
    podCidrs: [...(node?.podCIDRs ?? []), ...clusterCidr],
  };
  const wrong = [...new Set(serviceCidrs.flatMap((cidr) => otherAddressesIn(cidr, others)))];
  const given = `--service-cidrs=${serviceCidrs.join(',')}`;
  if (wrong.length > 0) {
    const action =
      'correct --service-cidrs: packets to addresses in it that are no cluster IP are dropped';
    return [fail(name, `${given} contains ${shortList(wrong)}`, action)];
  }
  const families = new Set(serviceCidrs.map(familyOf));
  const outside = services
    .flatMap(({ clusterIPs, key }) => clusterIPs.map((ip) => ({ ip, text: `${ip} (${key})` })))
    .filter(({ ip }) => families.has(familyOf(ip)) && !contains(ip));
  if (outside.length > 0) {
    const seen = `${given} does not contain ${shortList(outside.map(({ text }) => text))}; ${shown}`;
    const action = "set --service-cidrs to the API server's --service-cluster-ip-range";
    return [fail(name, seen, action)];
  }
  return [ok(name, `${given} contains all cluster IPs; ${shown}`)];
}

function shortList(items: readonly string[]): string {
  const more = items.length - MAX_SHOWN;
  return items.slice(0, MAX_SHOWN).join(', ') + (more > 0 ? ` and ${more} more` : '');
}
