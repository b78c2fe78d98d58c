/** Reads NetworkPolicies; the parts that cannot be read fail closed. */
import { cidrContains } from './addresses.ts';
import type { Policy, PolicyFault, PolicyPeer, PolicyRule, PortMatch } from './policy-objects.ts';
import { readCidr } from './read-address.ts';
import {
  child,
  describeValue,
  fail,
  isMissing,
  knownFields,
  type ObjectField,
  readEnum,
  readInteger,
  readList,
  readOptionalInteger,
  readOptionalString,
  readString,
} from './read-field.ts';
import { readMetadata } from './read-metadata.ts';
import { collectFault, type RuleSchema, readRules } from './read-policy-rules.ts';
import { readPolicyProtocol } from './read-port-match.ts';
import { readSelector } from './read-selector.ts';

const TYPES = ['Ingress', 'Egress'] as const;
type PolicyType = (typeof TYPES)[number];

/**
 * Reads a NetworkPolicy of `networking.k8s.io/v1`, with the API server's defaults and the rules of
 * Kubernetes' ValidateNetworkPolicy.
 *
 * A violation becomes a fault and fails closed. A faulty rule allows nothing; a rule list that is
 * not a list counts as empty. If the policy as a whole is faulty (`policyTypes`, an unknown field),
 * its pods are isolated in both directions and the policy allows nothing. Otherwise the rules of a
 * direction that is not in `policyTypes` are not read.
 * @throws InvalidObject when the name, namespace or `podSelector` cannot be read, because the
 * isolated pods are then unknown. The API server stores an unreadable `podSelector` only if one of
 * its values is not a valid label value.
 */
export function readNetworkPolicy(raw: unknown): Policy {
  const { root, metadata, key, namespace, name } = readMetadata('NetworkPolicy', raw);
  const spec = child(root, 'spec');
  const pods = readSelector(child(spec, 'podSelector'));
  const faults: PolicyFault[] = [];
  collectFault(faults, () =>
    knownFields(spec, ['podSelector', 'ingress', 'egress', 'policyTypes']),
  );
  const types = collectFault(faults, () => readTypes(spec)) ?? [];
  const isValid = faults.length === 0;
  const rulesOf = (type: PolicyType): readonly PolicyRule[] | undefined => {
    if (isValid && !types.includes(type)) return undefined;
    const [list, peers] = type === 'Ingress' ? ['ingress', 'from'] : ['egress', 'to'];
    const read = readRules(child(spec, list), ruleSchema(namespace, peers), isValid);
    faults.push(...read.faults);
    return read.rules ?? [];
  };
  return {
    kind: 'NetworkPolicy',
    key,
    namespace,
    name,
    uid: readOptionalString(child(metadata, 'uid')) ?? '',
    tier: 'NetworkPolicy',
    priority: 0,
    subject: { namespaces: namespace, pods },
    ingress: rulesOf('Ingress'),
    egress: rulesOf('Egress'),
    faults,
  };
}

/** Reads `policyTypes`; when missing or empty, applies SetDefaults_NetworkPolicy. */
function readTypes(spec: ObjectField): readonly PolicyType[] {
  const list = child(spec, 'policyTypes');
  const fields = readList(list);
  if (fields.length > TYPES.length) fail(list, 'must have at most two items');
  if (fields.length > 0) return fields.map((field) => readEnum(field, TYPES));
  const { value } = child(spec, 'egress');
  // A value that is not a list may have been meant as egress rules, so isolate egress too.
  const hasEgress = Array.isArray(value) ? value.length > 0 : value !== undefined && value !== null;
  return hasEgress ? TYPES : ['Ingress'];
}

function ruleSchema(namespace: string, peersName: string): RuleSchema {
  return {
    maxRules: Infinity,
    members: [peersName, 'ports'],
    name: () => '',
    action: () => 'Allow',
    peers: (rule) => optionalList(child(rule, peersName), (field) => readPeer(field, namespace)),
    ports: (rule) => optionalList(child(rule, 'ports'), readPort),
    check: () => {},
  };
}

/** Reads a list of peers or ports. An empty list restricts nothing, like a missing list. */
function optionalList<T>(list: ObjectField, read: (field: ObjectField) => T): T[] | undefined {
  const fields = readList(list);
  return fields.length === 0 ? undefined : fields.map(read);
}

function readPeer(field: ObjectField, namespace: string): PolicyPeer {
  const set = knownFields(field, ['podSelector', 'namespaceSelector', 'ipBlock']);
  if (set.length === 0) fail(field, 'must have podSelector, namespaceSelector or ipBlock');
  if (set.includes('ipBlock')) {
    if (set.length > 1) fail(field, 'must not have both ipBlock and a selector');
    return readIpBlock(child(field, 'ipBlock'));
  }
  const namespaces = set.includes('namespaceSelector')
    ? readSelector(child(field, 'namespaceSelector'))
    : namespace;
  return {
    kind: 'pods',
    selection: { namespaces, pods: readSelector(child(field, 'podSelector')) },
  };
}

function readIpBlock(field: ObjectField): PolicyPeer {
  knownFields(field, ['cidr', 'except']);
  const whole = readCidr(child(field, 'cidr'));
  const except = readList(child(field, 'except')).map((item) => {
    const part = readCidr(item);
    if (!isWithin(part, whole)) fail(item, `must be a strict subset of ${whole}, not ${part}`);
    return part;
  });
  return { kind: 'network', cidr: whole, except: [...new Set(except)] };
}

function isWithin(part: string, whole: string): boolean {
  const [address = '', bits] = part.split('/');
  return cidrContains(whole, address) && Number(bits) > Number(whole.split('/')[1]);
}

/**
 * Reads a port or port range. A range needs a numeric start port, and the end must not be less than
 * the start (KEP-2079).
 */
function readPort(field: ObjectField): PortMatch {
  if (isMissing(field)) fail(field, 'must be an object, not null');
  knownFields(field, ['protocol', 'port', 'endPort']);
  const ofProtocol = readPolicyProtocol(child(field, 'protocol'));
  const portField = child(field, 'port');
  const endField = child(field, 'endPort');
  const isRange = !isMissing(endField);
  if (isMissing(portField)) {
    if (isRange) fail(endField, 'must not be set without a port');
    return { protocol: ofProtocol, first: 1, last: 65535 };
  }
  if (typeof portField.value === 'string') {
    if (isRange) fail(endField, 'must not be set with a named port');
    return { protocol: ofProtocol, name: portName(portField) };
  }
  const first = readInteger(portField, 1, 65535);
  const last = readOptionalInteger(endField, 1, 65535) ?? first;
  if (last < first) fail(endField, `must not be less than port ${first}, but is ${last}`);
  return { protocol: ofProtocol, first, last };
}

/** Reads a port name with the rules for container ports (Kubernetes' IsValidPortName, RFC 6335). */
function portName(field: ObjectField): string {
  const value = readString(field);
  const isName = /^[a-z0-9]+(-[a-z0-9]+)*$/.test(value) && /[a-z]/.test(value);
  if (isName && value.length <= 15) return value;
  return fail(
    field,
    `must be a port name (at most 15 of a-z, 0-9 and '-', at least one letter, no '-' at the start or end, no '--'), not ${describeValue(value)}`,
  );
}
