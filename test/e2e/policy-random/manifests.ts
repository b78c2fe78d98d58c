/** Network policy objects as their APIs write them, in all equivalent forms. */
import type {
  LabelSelector,
  Labels,
  Pod,
  PodSelection,
  Policy,
  PolicyPeer,
  PolicyRule,
  PortMatch,
} from '../../../api/policy-objects.ts';
import type { TestObject } from '../../policy/objects.ts';
import type { Manifest } from '../manifests.ts';

type Json = Readonly<Record<string, unknown>>;

const ALPHA1 = 'policy.networking.k8s.io/v1alpha1';

/** The object as a user might write it. */
export function manifestOf(object: TestObject): Manifest {
  switch (object.kind) {
    case 'Pod':
      return podOf(object);
    case 'Namespace':
      return written('v1', object);
    case 'Node': {
      const addresses = object.addresses.map((address) => ({ type: 'InternalIP', address }));
      return { ...written('v1', object), spec: {}, status: { addresses } };
    }
    case 'CIDRGroup':
      return { ...written(ALPHA1, object), spec: { cidrs: object.cidrs } };
    case 'NetworkPolicy':
      return { ...written('networking.k8s.io/v1', object), spec: networkPolicySpec(object) };
    case 'ClusterNetworkPolicy': {
      const { tier, priority } = object;
      const spec = { tier, priority, ...clusterSpec(object) };
      return { ...written('policy.networking.k8s.io/v1alpha2', object), spec };
    }
    case 'AdminNetworkPolicy':
      return {
        ...written(ALPHA1, object),
        spec: { priority: object.priority, ...clusterSpec(object) },
      };
    case 'BaselineAdminNetworkPolicy':
      return { ...written(ALPHA1, object), spec: clusterSpec(object) };
  }
}

function written(
  apiVersion: string,
  object: { kind: string; name: string; namespace?: string; labels?: Labels },
): Manifest {
  const { kind, name, namespace, labels } = object;
  return {
    apiVersion,
    kind,
    metadata: { name, ...(namespace && { namespace }), ...(labels && { labels }) },
  };
}

function podOf(pod: Pod): Manifest {
  const { nodeName, namedPorts, addresses } = pod;
  const ports = namedPorts.map(({ name, protocol, port }) => ({
    name,
    containerPort: port,
    ...(protocol !== 'TCP' && { protocol }),
  }));
  // Two containers may declare the same port name.
  const containers = ports.map((port, index) => ({ name: `c${index}`, ports: [port] }));
  return {
    ...written('v1', pod),
    spec: { nodeName, containers: [...containers, { name: 'main' }] },
    status: { phase: 'Running', podIPs: addresses.map((ip) => ({ ip })) },
  };
}

/** `matchLabels` for `app` where possible, otherwise expressions. */
function selectorOf(selector: LabelSelector): Json {
  const isLabel = ({ key, operator, values }: LabelSelector[number], index: number) =>
    key === 'app' &&
    operator === 'In' &&
    values.length === 1 &&
    selector.findIndex((each) => each.key === key && each.operator === 'In') === index;
  const labels = selector.filter(isLabel);
  const expressions = selector.filter((each, index) => !isLabel(each, index));
  return {
    ...(labels.length > 0 && {
      matchLabels: Object.fromEntries(labels.map(({ key, values }) => [key, values[0]])),
    }),
    ...(expressions.length > 0 && {
      matchExpressions: expressions.map(({ key, operator, values }) => ({
        key,
        operator,
        ...(values.length > 0 && { values }),
      })),
    }),
  };
}

function networkPolicySpec({ subject, namespace, ingress, egress }: Policy): Json {
  const rules = (peers: 'from' | 'to', some: readonly PolicyRule[] | undefined) =>
    some?.map((rule) => ({
      ...(rule.peers && { [peers]: rule.peers.map((peer) => networkPolicyPeer(peer, namespace)) }),
      ...(rule.ports && { ports: rule.ports.map(networkPolicyPort) }),
    }));
  // The API server's default.
  const isDefault = ingress !== undefined && (egress === undefined || egress.length > 0);
  return {
    podSelector: selectorOf(subject.pods),
    ...(!isDefault && {
      policyTypes: [ingress && 'Ingress', egress && 'Egress'].filter((type) => type !== undefined),
    }),
    ...(ingress && { ingress: rules('from', ingress) }),
    ...(egress && { egress: rules('to', egress) }),
  };
}

function networkPolicyPeer(peer: PolicyPeer, own: string): Json {
  if (peer.kind === 'network') {
    const { cidr, except } = peer;
    return { ipBlock: { cidr, ...(except.length > 0 && { except }) } };
  }
  const { namespaces, pods } = selectionOf(peer);
  if (namespaces === own) return { podSelector: selectorOf(pods) };
  if (typeof namespaces === 'string') throw new TypeError(`a peer of ${own} in ${namespaces}`);
  return {
    namespaceSelector: selectorOf(namespaces),
    ...(pods.length > 0 && { podSelector: selectorOf(pods) }),
  };
}

function networkPolicyPort(match: PortMatch): Json {
  const protocol = match.protocol !== 'TCP' && { protocol: match.protocol };
  if ('name' in match) return { ...protocol, port: match.name };
  const { first, last } = match;
  if (first === 1 && last === 65535) return { protocol: match.protocol };
  return { ...protocol, port: first, ...(last !== first && { endPort: last }) };
}

function clusterSpec({ kind, subject, ingress, egress }: Policy): Json {
  const isClusterPolicy = kind === 'ClusterNetworkPolicy';
  const rules = (peers: 'from' | 'to', some: readonly PolicyRule[] | undefined) =>
    some?.map((rule) => ({
      action: isClusterPolicy && rule.action === 'Allow' ? 'Accept' : rule.action,
      [peers]: (rule.peers ?? []).map(clusterPeer),
      ...(rule.ports && {
        [isClusterPolicy ? 'protocols' : 'ports']: rule.ports.map(
          isClusterPolicy ? clusterPort : adminPort,
        ),
      }),
    }));
  return {
    subject: podsOf(subject),
    ...(ingress && { ingress: rules('from', ingress) }),
    ...(egress && { egress: rules('to', egress) }),
  };
}

function podsOf({ namespaces, pods }: PodSelection): Json {
  if (typeof namespaces === 'string') throw new TypeError(`pods in ${namespaces}`);
  if (pods.length === 0) return { namespaces: selectorOf(namespaces) };
  return {
    pods: { namespaceSelector: selectorOf(namespaces), podSelector: selectorOf(pods) },
  };
}

/** `networks` alternately in upstream's and in NPEP-182's form. */
function clusterPeer(peer: PolicyPeer): Json {
  switch (peer.kind) {
    case 'nodes':
      return { nodes: selectorOf(peer.selector) };
    case 'cidrGroups':
      return { networks: [{ cidrGroups: selectorOf(peer.selector) }] };
    case 'network':
      return { networks: peer.cidr.length % 2 ? [peer.cidr] : { cidrs: [peer.cidr] } };
    default:
      return podsOf(selectionOf(peer));
  }
}

function adminPort(match: PortMatch): Json {
  if ('name' in match) return { namedPort: match.name };
  const { protocol, first, last } = match;
  if (first === last) return { portNumber: { protocol, port: first } };
  return { portRange: { protocol, start: first, end: last } };
}

function clusterPort(match: PortMatch): Json {
  if ('name' in match) return { destinationNamedPort: match.name };
  const { protocol, first, last } = match;
  const destinationPort =
    first === last ? { number: first } : { range: { start: first, end: last } };
  return { [protocol.toLowerCase()]: { destinationPort } };
}

function selectionOf(peer: PolicyPeer): PodSelection {
  if (peer.kind === 'pods') return peer.selection;
  throw new TypeError(`this kind of policy has no peers of kind ${peer.kind}`);
}
