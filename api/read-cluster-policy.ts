/**
 * Reads AdminNetworkPolicy, BaselineAdminNetworkPolicy and ClusterNetworkPolicy of
 * network-policy-api (`policy.networking.k8s.io` v1alpha1, v1alpha2 and v1beta1).
 */
import type {
  PodSelection,
  Policy,
  PolicyFault,
  PolicyPeer,
  PolicyRule,
  PortMatch,
} from './policy-objects.ts';
import { readDomainName } from './read-domain-name.ts';
import {
  child,
  fail,
  isMissing,
  knownFields,
  type ObjectField,
  oneOfField,
  readEnum,
  readInteger,
  readNonEmptyList,
  readOptionalString,
  readString,
} from './read-field.ts';
import { readMetadata } from './read-metadata.ts';
import { readNetworks } from './read-networks.ts';
import { collectFault, denyAllRule, type RuleSchema, readRules } from './read-policy-rules.ts';
import { readAdminPort, readClusterPort } from './read-port-match.ts';
import { readRequiredSelector, readSelector } from './read-selector.ts';

type ClusterPolicyKind = Exclude<Policy['kind'], 'NetworkPolicy'>;
type PeerForm = 'namespaces' | 'pods' | 'nodes' | 'networks' | 'domainNames';

/** The differences between the three kinds of cluster-scoped policies. */
interface PolicySchema {
  readonly kind: ClusterPolicyKind;
  /** `spec`: the tier is read from `spec.tier`. */
  readonly tier: Policy['tier'] | 'spec';
  /**
   * Whether policies of the kind have a priority. If false, the only object of the kind is named
   * `default`.
   */
  readonly hasPriority: boolean;
  /** Actions as written in the API; `Accept` is an Allow. */
  readonly actions: readonly (PolicyRule['action'] | 'Accept')[];
  readonly egressPeers: readonly PeerForm[];
  /** Name of the rule field that lists the ports. */
  readonly ports: 'ports' | 'protocols';
  readonly port: (field: ObjectField) => PortMatch;
  /** Maximum number of rules per direction, and of peers and of ports per rule. */
  readonly maxItems: number;
  /** Whether `pods` must have a `namespaceSelector`, which may be empty. */
  readonly needsNamespaceSelector: boolean;
}

const ADMIN: PolicySchema = {
  kind: 'AdminNetworkPolicy',
  tier: 'Admin',
  hasPriority: true,
  actions: ['Allow', 'Deny', 'Pass'],
  egressPeers: ['namespaces', 'pods', 'nodes', 'networks', 'domainNames'],
  ports: 'ports',
  port: readAdminPort,
  maxItems: 100,
  needsNamespaceSelector: true,
};

/**
 * No domain names: NetworkPolicy has no domain names, so it could not override a rule that uses them
 * (NPEP-133).
 */
const BASELINE: PolicySchema = {
  ...ADMIN,
  kind: 'BaselineAdminNetworkPolicy',
  tier: 'Baseline',
  hasPriority: false,
  actions: ['Allow', 'Deny'],
  egressPeers: ['namespaces', 'pods', 'nodes', 'networks'],
};

const CLUSTER: PolicySchema = {
  ...ADMIN,
  kind: 'ClusterNetworkPolicy',
  tier: 'spec',
  actions: ['Accept', 'Deny', 'Pass'],
  ports: 'protocols',
  port: readClusterPort,
  maxItems: 25,
  needsNamespaceSelector: false,
};

const INGRESS_PEERS: readonly PeerForm[] = ['namespaces', 'pods'];
const MAX_DOMAIN_NAMES = 25;
const MAX_RULE_NAME = 100;

/** @throws InvalidObject, see `readPolicy`. */
export const readAdminNetworkPolicy = (raw: unknown): Policy => readPolicy(raw, ADMIN);

/** @throws InvalidObject, see `readPolicy`. */
export const readBaselineAdminNetworkPolicy = (raw: unknown): Policy => readPolicy(raw, BASELINE);

/**
 * Reads a ClusterNetworkPolicy, v1beta1 or v1alpha2, with every form of `networks`.
 * @throws InvalidObject, see `readPolicy`.
 */
export const readClusterNetworkPolicy = (raw: unknown): Policy => readPolicy(raw, CLUSTER);

/**
 * Reads a cluster-scoped policy. An invalid or unknown part becomes a fault and fails closed (see
 * `read-policy-rules.ts`). An unreadable tier counts as Admin and an unreadable priority as 0, the
 * values that are evaluated first.
 * @throws InvalidObject when the name or subject cannot be read: the pods that the policy selects
 * are then unknown.
 */
function readPolicy(raw: unknown, schema: PolicySchema): Policy {
  const { kind, hasPriority } = schema;
  const { root, metadata, key, name } = readMetadata(kind, raw);
  const spec = child(root, 'spec');
  const subject = readSubject(child(spec, 'subject'), schema);
  const faults: PolicyFault[] = [];
  const orderFields = [
    ...(schema.tier === 'spec' ? ['tier'] : []),
    ...(hasPriority ? ['priority'] : []),
  ];
  collectFault(faults, () => knownFields(spec, ['subject', 'ingress', 'egress', ...orderFields]));
  collectFault(faults, () => {
    if (hasPriority || name === 'default') return;
    fail(child(metadata, 'name'), 'must be default, the only name allowed for this kind');
  });
  const tier = collectFault(faults, () => readTier(spec, schema)) ?? 'Admin';
  const priority = collectFault(faults, () => (hasPriority ? readPriority(spec) : 0)) ?? 0;
  const isValid = faults.length === 0;
  const rulesOf = (
    member: 'ingress' | 'egress',
    peers: 'from' | 'to',
    forms: readonly PeerForm[],
  ): readonly PolicyRule[] | undefined => {
    const ruleSchema = ruleSchemaOf(schema, peers, forms);
    const found = readRules(child(spec, member), ruleSchema, isValid);
    faults.push(...found.faults);
    if (found.rules === undefined) return [denyAllRule(`spec.${member}`)];
    return found.rules.length === 0 ? undefined : found.rules;
  };
  return {
    kind,
    key,
    namespace: '',
    name,
    uid: readOptionalString(child(metadata, 'uid')) ?? '',
    tier,
    priority,
    subject,
    ingress: rulesOf('ingress', 'from', INGRESS_PEERS),
    egress: rulesOf('egress', 'to', schema.egressPeers),
    faults,
  };
}

function readTier(spec: ObjectField, { tier }: PolicySchema): Policy['tier'] {
  return tier === 'spec' ? readEnum(child(spec, 'tier'), ['Admin', 'Baseline']) : tier;
}

/** Reads a priority, 0 to 1000. The policy with the lower number is evaluated first. */
function readPriority(spec: ObjectField): number {
  return readInteger(child(spec, 'priority'), 0, 1000);
}

function readSubject(field: ObjectField, schema: PolicySchema): PodSelection {
  if (isMissing(field)) fail(field, 'is required');
  const form = oneOfField(field, ['namespaces', 'pods']);
  return readPods(child(field, form), form, schema);
}

function readPods(
  field: ObjectField,
  form: 'namespaces' | 'pods',
  schema: PolicySchema,
): PodSelection {
  if (form === 'namespaces') return { namespaces: readSelector(field), pods: [] };
  knownFields(field, ['namespaceSelector', 'podSelector']);
  const namespaces = child(field, 'namespaceSelector');
  return {
    namespaces: schema.needsNamespaceSelector
      ? readRequiredSelector(namespaces)
      : readSelector(namespaces),
    pods: readRequiredSelector(child(field, 'podSelector')),
  };
}

function ruleSchemaOf(
  schema: PolicySchema,
  peers: 'from' | 'to',
  forms: readonly PeerForm[],
): RuleSchema {
  const { maxItems, actions, port } = schema;
  return {
    maxRules: maxItems,
    members: ['name', 'action', peers, schema.ports],
    name: (rule) => readRuleName(child(rule, 'name')),
    action: (rule) => readAction(child(rule, 'action'), actions),
    peers: (rule) =>
      readNonEmptyList(child(rule, peers), maxItems).flatMap((field) =>
        readPeer(field, forms, schema),
      ),
    ports: (rule) => {
      const list = child(rule, schema.ports);
      return isMissing(list) ? undefined : readNonEmptyList(list, maxItems).map(port);
    },
    check: (field, rule) => checkRule(child(field, schema.ports), child(field, peers), rule),
  };
}

function readRuleName(field: ObjectField): string {
  const name = isMissing(field) ? '' : readString(field);
  const { length } = [...name];
  if (length > MAX_RULE_NAME) {
    fail(field, `must have at most ${MAX_RULE_NAME} characters, not ${length}`);
  }
  return name;
}

function readAction(field: ObjectField, actions: PolicySchema['actions']): PolicyRule['action'] {
  const action = readEnum(field, actions);
  return action === 'Accept' ? 'Allow' : action;
}

function readPeer(
  field: ObjectField,
  forms: readonly PeerForm[],
  schema: PolicySchema,
): PolicyPeer[] {
  const form = oneOfField(field, forms);
  const value = child(field, form);
  if (form === 'networks') return readNetworks(value);
  if (form === 'nodes') return [{ kind: 'nodes', selector: readSelector(value) }];
  if (form === 'domainNames') {
    const names = readNonEmptyList(value, MAX_DOMAIN_NAMES);
    rejectDuplicates(names);
    return names.map((item) => ({ kind: 'domainName', pattern: readDomainName(item) }));
  }
  return [{ kind: 'pods', selection: readPods(value, form, schema) }];
}

/**
 * Rejects equal items, as API servers do for `listType=set`. Two spellings of one name are
 * different items.
 */
function rejectDuplicates(list: readonly ObjectField[]): void {
  const seen = new Set<unknown>();
  for (const field of list) {
    if (seen.has(field.value)) fail(field, 'must not be repeated');
    seen.add(field.value);
  }
}

/**
 * Rejects a named port together with a peer that is not a pod, because only pods have named ports.
 * Rejects domain names in a Deny or Pass rule, because some of their addresses may still be unknown
 * (NPEP-133).
 */
function checkRule(
  portsField: ObjectField,
  peersField: ObjectField,
  { action, peers, ports }: PolicyRule,
): void {
  const nonPodPeer = peers?.find((peer) => peer.kind !== 'pods');
  if (nonPodPeer !== undefined && ports?.some((port) => 'name' in port)) {
    fail(
      portsField,
      'must not have a named port: only pods have named ports, and the rule has other peers',
    );
  }
  if (action !== 'Allow' && peers?.some((peer) => peer.kind === 'domainName')) {
    fail(peersField, 'must not have domainNames: only an Allow rule can have them');
  }
}
