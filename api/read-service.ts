/** Reads Services. */
import { canonicalAddress, type SpecialRange, sloppyText, specialRange } from './addresses.ts';
import { ANNOTATION_PREFIX, PORTS_ANNOTATION } from './all-ports.ts';
import { trimmedCopy } from './collections.ts';
import { InvalidObject } from './errors.ts';
import { LOAD_BALANCING_ANNOTATION } from './load-balancing.ts';
import {
  type LoadBalancerIngress,
  PROTOCOLS,
  type Service,
  type ServicePort,
  type ServiceType,
  type TrafficPolicy,
} from './objects.ts';
import { OWNED_PORTS_ANNOTATION, PORTS_PER_POD_ANNOTATION } from './owned-ports.ts';
import {
  ALL_SPECIAL,
  readSloppyAddress,
  readSloppyCidr,
  requireOnePerFamily,
} from './read-address.ts';
import {
  child,
  describeValue,
  fail,
  isMissing,
  isRecord,
  type ObjectField,
  pathOf,
  readInteger,
  readList,
  readOptionalBoolean,
  readOptionalEnum,
  readOptionalInteger,
  readOptionalString,
  readString,
} from './read-field.ts';
import { readCreationTimestamp, readMetadata } from './read-metadata.ts';
import { readPortName } from './read-name.ts';
import { readTexts } from './read-selector.ts';

const TYPES: readonly ServiceType[] = ['ClusterIP', 'NodePort', 'LoadBalancer', 'ExternalName'];
const POLICIES: readonly TrafficPolicy[] = ['Cluster', 'Local'];
const NO_CLUSTER_IP: readonly SpecialRange[] = [
  'unspecified',
  'loopback',
  'multicast',
  'broadcast',
];
const KNOWN_ANNOTATIONS: ReadonlySet<string> = new Set([
  PORTS_ANNOTATION,
  OWNED_PORTS_ANNOTATION,
  PORTS_PER_POD_ANNOTATION,
  LOAD_BALANCING_ANNOTATION,
]);
/** Kubernetes' DefaultClientIPServiceAffinitySeconds and MaxClientIPServiceAffinitySeconds. */
const AFFINITY_SECONDS = 10800;
const MAX_AFFINITY_SECONDS = 86400;

/**
 * Reads a Service of `v1` with the API server's defaults. Checks the fields that it reads by the
 * rules of Kubernetes' ValidateService; `all-ports.ts` checks the rules for all-ports Services.
 * @throws InvalidObject for the first field that cannot be read.
 */
export function readService(raw: unknown): Service {
  const { root, metadata, key, namespace, name } = readMetadata('Service', raw);
  const spec = child(root, 'spec');
  if (isMissing(spec)) fail(spec, 'is required');
  const type = readOptionalEnum(child(spec, 'type'), TYPES, 'ClusterIP');
  // kube-proxy ignores cluster IPs of ExternalName Services.
  const clusterIPs = type === 'ExternalName' ? [] : readClusterIPs(spec);
  const annotations = child(metadata, 'annotations');
  const unknownAnnotations = readUnknownAnnotations(annotations);
  const problems = new AddressProblemList();
  const externalIPs = problems.readEach(child(spec, 'externalIPs'), (field) =>
    readSloppyAddress(field, ALL_SPECIAL),
  );
  const loadBalancerIngress = readIngress(child(child(root, 'status'), 'loadBalancer'), problems);
  const sourceRanges = problems.readEach(child(spec, 'loadBalancerSourceRanges'), readSloppyCidr);
  const loadBalancingAnnotation = readAnnotation(child(annotations, LOAD_BALANCING_ANNOTATION));
  return {
    kind: 'Service',
    key,
    namespace,
    name,
    uid: readOptionalString(child(metadata, 'uid')) ?? '',
    creationTimestamp: readCreationTimestamp(metadata),
    type,
    clusterIPs: clusterIPs === 'None' ? [] : clusterIPs,
    headless: clusterIPs === 'None',
    externalName:
      type === 'ExternalName' ? readOptionalString(child(spec, 'externalName')) : undefined,
    publishNotReadyAddresses: readOptionalBoolean(child(spec, 'publishNotReadyAddresses')) ?? false,
    ports: readPorts(child(spec, 'ports'), type),
    allPorts: readOptionalBoolean(child(spec, 'allPorts')),
    portsAnnotation: readAnnotation(child(annotations, PORTS_ANNOTATION)),
    ...readOwnedPorts(annotations, child(spec, 'selector')),
    ...(loadBalancingAnnotation === undefined ? {} : { loadBalancingAnnotation }),
    ...(unknownAnnotations.length > 0 ? { unknownAnnotations } : {}),
    ...(problems.warnings.length === 0
      ? {}
      : {
          addressProblems: {
            warnings: trimmedCopy(problems.warnings),
            hasUnreadableExternalIP: externalIPs.hasUnreadable,
            hasUnreadableSourceRange: sourceRanges.hasUnreadable,
          },
        }),
    externalIPs: trimmedCopy(unique(externalIPs.values)),
    loadBalancerIngress: trimmedCopy(loadBalancerIngress),
    loadBalancerSourceRanges: trimmedCopy(unique(sourceRanges.values)),
    externalTrafficPolicy: readOptionalEnum(
      child(spec, 'externalTrafficPolicy'),
      POLICIES,
      'Cluster',
    ),
    internalTrafficPolicy: readOptionalEnum(
      child(spec, 'internalTrafficPolicy'),
      POLICIES,
      'Cluster',
    ),
    healthCheckNodePort: readOptionalInteger(child(spec, 'healthCheckNodePort'), 0, 65535) ?? 0,
    affinitySeconds: readAffinity(spec),
    otherProxy: hasLabel(metadata, 'service.kubernetes.io/service-proxy-name'),
    headlessLabel: hasLabel(metadata, 'service.kubernetes.io/headless'),
  };
}

function readClusterIPs(spec: ObjectField): string[] | 'None' {
  const single = child(spec, 'clusterIP');
  const list = child(spec, 'clusterIPs');
  const first = readOptionalString(single);
  const fields = readList(list);
  if (fields.length === 0) {
    if (first === undefined) return [];
    return first === 'None' ? 'None' : [readSloppyAddress(single, NO_CLUSTER_IP)];
  }
  if (fields.length === 1 && fields[0]?.value === 'None') {
    if (first !== undefined && first !== 'None')
      fail(list, 'must have spec.clusterIP as its first entry');
    return 'None';
  }
  const addresses = fields.map((field) => readSloppyAddress(field, NO_CLUSTER_IP));
  requireOnePerFamily(list, addresses);
  if (first !== undefined && canonicalAddress(sloppyText(first)) !== addresses[0]) {
    fail(list, 'must have spec.clusterIP as its first entry');
  }
  return addresses;
}

function readPorts(list: ObjectField, type: ServiceType): ServicePort[] {
  const fields = readList(list);
  const seen = new Set<string>();
  /**
   * Rejects a second port with the same name, or with the same number or node port and protocol, as
   * Kubernetes does.
   */
  const reserve = (field: ObjectField, what: string) => {
    if (seen.has(what)) fail(field, `duplicates the ${what}`);
    seen.add(what);
  };
  return fields.map((field) => {
    const name = readPortName(child(field, 'name'));
    if (name === '' && fields.length > 1) {
      fail(child(field, 'name'), 'is required when there are several ports');
    }
    const protocol = readOptionalEnum(child(field, 'protocol'), PROTOCOLS, 'TCP');
    const port = readInteger(child(field, 'port'), 1, 65535);
    const nodePort = readOptionalInteger(child(field, 'nodePort'), 0, 65535) ?? 0;
    if (nodePort !== 0 && type !== 'NodePort' && type !== 'LoadBalancer') {
      fail(child(field, 'nodePort'), `must not be set on a Service of type ${type}`);
    }
    reserve(child(field, 'name'), `port named "${name}"`);
    reserve(child(field, 'port'), `port ${port}/${protocol}`);
    if (nodePort !== 0) reserve(child(field, 'nodePort'), `node port ${nodePort}/${protocol}`);
    return { name, protocol, port, nodePort };
  });
}

/**
 * Reads the load balancer addresses from the status. Skips entries without an IP address, such as
 * the host name that Docker Desktop writes. Skips special addresses, which no node may capture, such
 * as 127.0.0.1 of `minikube tunnel`. The other addresses of the Service are still served.
 */
function readIngress(
  loadBalancer: ObjectField,
  problems: AddressProblemList,
): LoadBalancerIngress[] {
  const ingress: LoadBalancerIngress[] = [];
  const { values } = problems.readEach(child(loadBalancer, 'ingress'), (field) => {
    const ip = child(field, 'ip');
    if (readOptionalString(ip) === undefined) return undefined;
    return { field, ip: readSloppyAddress(ip, []) };
  });
  for (const value of values) {
    if (value === undefined || specialRange(value.ip) !== undefined) continue;
    const { field, ip } = value;
    // Treat an unknown mode as Proxy: like kube-proxy, capture the address only in mode VIP.
    const ipMode =
      (readOptionalString(child(field, 'ipMode')) ?? 'VIP') === 'VIP' ? 'VIP' : 'Proxy';
    if (!ingress.some((other) => other.ip === ip && other.ipMode === ipMode)) {
      ingress.push({ ip, ipMode });
    }
  }
  return ingress;
}

/** Reads lists of addresses item by item, so that an unreadable item takes nothing from the others. */
class AddressProblemList {
  readonly warnings: string[] = [];

  /** Reads the items of a list. One warning for all unreadable items, and one for all that are not read as written. */
  readEach<T>(
    list: ObjectField,
    read: (item: ObjectField) => T,
  ): { values: T[]; hasUnreadable: boolean } {
    const unreadable: string[] = [];
    const values: T[] = [];
    const attempt = (action: () => void) => {
      try {
        action();
      } catch (error) {
        if (!(error instanceof InvalidObject)) throw error;
        unreadable.push(`${error.field}: ${error.reason}; ignored`);
      }
    };
    let items: ObjectField[] = [];
    attempt(() => {
      items = readList(list);
    });
    for (const item of items) attempt(() => values.push(read(item)));
    this.#warn(unreadable);
    this.#warn(items.flatMap((item) => rewriteWarning(item) ?? []));
    return { values, hasUnreadable: unreadable.length > 0 };
  }

  #warn([first, ...others]: readonly string[]): void {
    if (first === undefined) return;
    this.warnings.push(others.length === 0 ? first : `${first} (and ${others.length} more)`);
  }
}

function rewriteWarning(item: ObjectField): string | undefined {
  const field = isRecord(item.value) ? child(item, 'ip') : item;
  if (typeof field.value !== 'string') return undefined;
  const text = field.value.trim();
  const read = sloppyText(text);
  if (read === text) return undefined;
  return `${pathOf(field)}: ${describeValue(text)} is read as ${read}; write it so`;
}

function readAffinity(spec: ObjectField): number {
  const affinity = readOptionalEnum(child(spec, 'sessionAffinity'), ['None', 'ClientIP'], 'None');
  if (affinity === 'None') return 0;
  const clientIP = child(child(spec, 'sessionAffinityConfig'), 'clientIP');
  const seconds = readOptionalInteger(child(clientIP, 'timeoutSeconds'), 1, MAX_AFFINITY_SECONDS);
  return seconds ?? AFFINITY_SECONDS;
}

/** The annotations of owned ports, as far as the Service has them: few Services do. */
function readOwnedPorts(
  annotations: ObjectField,
  selector: ObjectField,
): Pick<Service, 'ownedPortsAnnotation' | 'portsPerPodAnnotation' | 'ownersSelector'> {
  const ownedPortsAnnotation = readAnnotation(child(annotations, OWNED_PORTS_ANNOTATION));
  const portsPerPodAnnotation = readAnnotation(child(annotations, PORTS_PER_POD_ANNOTATION));
  const hasSelector = ownedPortsAnnotation !== undefined && !isMissing(selector);
  return {
    ...(ownedPortsAnnotation === undefined ? {} : { ownedPortsAnnotation }),
    ...(hasSelector ? { ownersSelector: readTexts(selector) } : {}),
    ...(portsPerPodAnnotation === undefined ? {} : { portsPerPodAnnotation }),
  };
}

function readAnnotation(field: ObjectField): string | undefined {
  if (field.value === undefined) return undefined;
  if (typeof field.value !== 'string') {
    fail(field, `must be a string (in YAML, quote it), not ${describeValue(field.value)}`);
  }
  return readString(field);
}

/**
 * Paths of unknown annotations under `portwide.dev/`, such as the misspelled `portwide.dev/port`.
 */
function readUnknownAnnotations(annotations: ObjectField): string[] {
  if (!isRecord(annotations.value)) return [];
  return Object.keys(annotations.value)
    .filter((key) => key.startsWith(ANNOTATION_PREFIX) && !KNOWN_ANNOTATIONS.has(key))
    .map((key) => pathOf(child(annotations, key)));
}

function hasLabel(metadata: ObjectField, label: string): boolean {
  return child(child(metadata, 'labels'), label).value !== undefined;
}

function unique(texts: readonly string[]): string[] {
  return [...new Set(texts)];
}
