/**
 * AdminNetworkPolicies, BaselineAdminNetworkPolicies and ClusterNetworkPolicies, and in what they differ.
 * `policy.networking.k8s.io` of network-policy-api, v1alpha1, v1alpha2 and v1beta1.
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

/** In what the kinds differ. */
interface PolicySchema {
  readonly kind: ClusterPolicyKind;
  /** `spec`: as `spec.tier` says. */
  readonly tier: Policy['tier'] | 'spec';
  /** Otherwise there is one of the kind, of the name `default`. */
  readonly hasPriority: boolean;
  /** As they are written; `Accept` is an Allow. */
  readonly actions: readonly (PolicyRule['action'] | 'Accept')[];
  readonly egressPeers: readonly PeerForm[];
  /** The member of a rule that has its ports. */
  readonly ports: 'ports' | 'protocols';
  readonly port: (field: ObjectField) => PortMatch;
  /** At most so many rules a direction, peers and ports a rule. */
  readonly maxItems: number;
  /** `pods` must have `namespaceSelector`, be it empty. */
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

/** Without domain names: NetworkPolicies could not override these (NPEP-133). */
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
 * A ClusterNetworkPolicy, v1beta1 or v1alpha2, with `networks` in all of its forms.
 * @throws InvalidObject, see `readPolicy`.
 */
export const readClusterNetworkPolicy = (raw: unknown): Policy => readPolicy(raw, CLUSTER);

/**
 * A policy of such a kind. What its CRD would refuse, or what is not known here, becomes a fault, and
 * fails closed: see `read-policy-rules.ts`. Its place among others, if that cannot be read, is the first
 * of the Admin tier.
 * @throws InvalidObject when name or subject cannot be read: it is not known then whom it is about.
 */
function readPolicy(raw: unknown, dialect: PolicySchema): Policy {
  const { kind, hasPriority } = dialect;
  const { root, metadata, key, name } = readMetadata(kind, raw);
  const spec = child(root, 'spec');
  const subject = readSubject(child(spec, 'subject'), dialect);
  const faults: PolicyFault[] = [];
  const place = [
    ...(dialect.tier === 'spec' ? ['tier'] : []),
    ...(hasPriority ? ['priority'] : []),
  ];
  collectFault(faults, () => knownFields(spec, ['subject', 'ingress', 'egress', ...place]));
  collectFault(faults, () => {
    if (hasPriority || name === 'default') return;
    fail(child(metadata, 'name'), 'must be default: there is only one');
  });
  const tier = collectFault(faults, () => readTier(spec, dialect)) ?? 'Admin';
  const priority = collectFault(faults, () => (hasPriority ? readPriority(spec) : 0)) ?? 0;
  const isSound = faults.length === 0;
  const rulesOf = (
    member: 'ingress' | 'egress',
    peers: 'from' | 'to',
    forms: readonly PeerForm[],
  ): readonly PolicyRule[] | undefined => {
    const grammar = ruleSchemaOf(dialect, peers, forms);
    const found = readRules(child(spec, member), grammar, isSound);
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
    egress: rulesOf('egress', 'to', dialect.egressPeers),
    faults,
  };
}

function readTier(spec: ObjectField, { tier }: PolicySchema): Policy['tier'] {
  return tier === 'spec' ? readEnum(child(spec, 'tier'), ['Admin', 'Baseline']) : tier;
}

/** Lower goes first. */
function readPriority(spec: ObjectField): number {
  return readInteger(child(spec, 'priority'), 0, 1000);
}

function readSubject(field: ObjectField, dialect: PolicySchema): PodSelection {
  if (isMissing(field)) fail(field, 'is required');
  const form = oneOfField(field, ['namespaces', 'pods']);
  return readPods(child(field, form), form, dialect);
}

function readPods(
  field: ObjectField,
  form: 'namespaces' | 'pods',
  dialect: PolicySchema,
): PodSelection {
  if (form === 'namespaces') return { namespaces: readSelector(field), pods: [] };
  knownFields(field, ['namespaceSelector', 'podSelector']);
  const namespaces = child(field, 'namespaceSelector');
  return {
    namespaces: dialect.needsNamespaceSelector
      ? readRequiredSelector(namespaces)
      : readSelector(namespaces),
    pods: readRequiredSelector(child(field, 'podSelector')),
  };
}

function ruleSchemaOf(
  dialect: PolicySchema,
  peers: 'from' | 'to',
  forms: readonly PeerForm[],
): RuleSchema {
  const { maxItems: most, actions, port } = dialect;
  return {
    maxRules: most,
    members: ['name', 'action', peers, dialect.ports],
    name: (rule) => readRuleName(child(rule, 'name')),
    action: (rule) => readAction(child(rule, 'action'), actions),
    peers: (rule) =>
      readNonEmptyList(child(rule, peers), most).flatMap((field) =>
        readPeer(field, forms, dialect),
      ),
    ports: (rule) => {
      const list = child(rule, dialect.ports);
      return isMissing(list) ? undefined : readNonEmptyList(list, most).map(port);
    },
    check: (field, rule) => checkRule(child(field, dialect.ports), child(field, peers), rule),
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
  dialect: PolicySchema,
): PolicyPeer[] {
  const form = oneOfField(field, forms);
  const value = child(field, form);
  if (form === 'networks') return readNetworks(value);
  if (form === 'nodes') return [{ kind: 'nodes', selector: readSelector(value) }];
  if (form === 'domainNames') {
    const names = readNonEmptyList(value, MAX_DOMAIN_NAMES);
    refuseDuplicates(names);
    return names.map((item) => ({ kind: 'domainName', pattern: readDomainName(item) }));
  }
  return [{ kind: 'pods', selection: readPods(value, form, dialect) }];
}

/** API servers refuse an item twice in a list that is a set; two ways to write one name are two items. */
function refuseDuplicates(list: readonly ObjectField[]): void {
  const seen = new Set<unknown>();
  for (const field of list) {
    if (seen.has(field.value)) fail(field, 'must not be there twice');
    seen.add(field.value);
  }
}

/**
 * Only pods name their ports. Not all addresses of a domain need be known, so that only an Allow of
 * it is safe (NPEP-133).
 */
function checkRule(
  portsField: ObjectField,
  peersField: ObjectField,
  { action, peers, ports }: PolicyRule,
): void {
  const others = peers?.find((peer) => peer.kind !== 'pods');
  if (others !== undefined && ports?.some((port) => 'name' in port)) {
    fail(portsField, 'must not have a named port: not all peers of the rule are pods');
  }
  if (action !== 'Allow' && peers?.some((peer) => peer.kind === 'domainName')) {
    fail(peersField, 'must not have domainNames: they can be allowed only');
  }
}
