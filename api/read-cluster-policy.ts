/**
 * AdminNetworkPolicies, BaselineAdminNetworkPolicies and ClusterNetworkPolicies, and in what they differ.
 * `policy.networking.k8s.io` of network-policy-api, v1alpha1, v1alpha2 and v1beta1.
 */
import type {
  Peer,
  PodSelection,
  Policy,
  PolicyFault,
  PolicyRule,
  PortMatch,
} from './policy-objects.ts';
import { domainName } from './read-domain-name.ts';
import {
  child,
  type Field,
  fail,
  integer,
  isMissing,
  members,
  onlyMember,
  optionalText,
  someItems,
  text,
  word,
} from './read-field.ts';
import { readMetadata } from './read-metadata.ts';
import { readNetworks } from './read-networks.ts';
import { attempt, denyAll, type RuleGrammar, readRules } from './read-policy-rules.ts';
import { adminPort, clusterPort } from './read-port-match.ts';
import { readSelector, requiredSelector } from './read-selector.ts';

type ClusterPolicyKind = Exclude<Policy['kind'], 'NetworkPolicy'>;
type PeerForm = 'namespaces' | 'pods' | 'nodes' | 'networks' | 'domainNames';

/** In what the kinds differ. */
interface Dialect {
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
  readonly port: (field: Field) => PortMatch;
  /** At most so many rules a direction, peers and ports a rule. */
  readonly most: number;
  /** `pods` must have `namespaceSelector`, be it empty. */
  readonly needsNamespaceSelector: boolean;
}

const ADMIN: Dialect = {
  kind: 'AdminNetworkPolicy',
  tier: 'Admin',
  hasPriority: true,
  actions: ['Allow', 'Deny', 'Pass'],
  egressPeers: ['namespaces', 'pods', 'nodes', 'networks', 'domainNames'],
  ports: 'ports',
  port: adminPort,
  most: 100,
  needsNamespaceSelector: true,
};

/** Without domain names: NetworkPolicies could not override these (NPEP-133). */
const BASELINE: Dialect = {
  ...ADMIN,
  kind: 'BaselineAdminNetworkPolicy',
  tier: 'Baseline',
  hasPriority: false,
  actions: ['Allow', 'Deny'],
  egressPeers: ['namespaces', 'pods', 'nodes', 'networks'],
};

const CLUSTER: Dialect = {
  ...ADMIN,
  kind: 'ClusterNetworkPolicy',
  tier: 'spec',
  actions: ['Accept', 'Deny', 'Pass'],
  ports: 'protocols',
  port: clusterPort,
  most: 25,
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
function readPolicy(raw: unknown, dialect: Dialect): Policy {
  const { kind, hasPriority } = dialect;
  const { root, metadata, key, name } = readMetadata(kind, raw);
  const spec = child(root, 'spec');
  const subject = readSubject(child(spec, 'subject'), dialect);
  const faults: PolicyFault[] = [];
  const place = [
    ...(dialect.tier === 'spec' ? ['tier'] : []),
    ...(hasPriority ? ['priority'] : []),
  ];
  attempt(faults, () => members(spec, ['subject', 'ingress', 'egress', ...place]));
  attempt(faults, () => {
    if (hasPriority || name === 'default') return;
    fail(child(metadata, 'name'), 'must be default: there is only one');
  });
  const tier = attempt(faults, () => readTier(spec, dialect)) ?? 'Admin';
  const priority = attempt(faults, () => (hasPriority ? readPriority(spec) : 0)) ?? 0;
  const isSound = faults.length === 0;
  const rulesOf = (
    member: 'ingress' | 'egress',
    peers: 'from' | 'to',
    forms: readonly PeerForm[],
  ): readonly PolicyRule[] | undefined => {
    const grammar = grammarOf(dialect, peers, forms);
    const found = readRules(child(spec, member), grammar, isSound);
    faults.push(...found.faults);
    if (found.rules === undefined) return [denyAll(`spec.${member}`)];
    return found.rules.length === 0 ? undefined : found.rules;
  };
  return {
    kind,
    key,
    namespace: '',
    name,
    uid: optionalText(child(metadata, 'uid')) ?? '',
    tier,
    priority,
    subject,
    ingress: rulesOf('ingress', 'from', INGRESS_PEERS),
    egress: rulesOf('egress', 'to', dialect.egressPeers),
    faults,
  };
}

function readTier(spec: Field, { tier }: Dialect): Policy['tier'] {
  return tier === 'spec' ? word(child(spec, 'tier'), ['Admin', 'Baseline']) : tier;
}

/** Lower goes first. */
function readPriority(spec: Field): number {
  return integer(child(spec, 'priority'), 0, 1000);
}

function readSubject(field: Field, dialect: Dialect): PodSelection {
  if (isMissing(field)) fail(field, 'is required');
  const form = onlyMember(field, ['namespaces', 'pods']);
  return readPods(child(field, form), form, dialect);
}

function readPods(field: Field, form: 'namespaces' | 'pods', dialect: Dialect): PodSelection {
  if (form === 'namespaces') return { namespaces: readSelector(field), pods: [] };
  members(field, ['namespaceSelector', 'podSelector']);
  const namespaces = child(field, 'namespaceSelector');
  return {
    namespaces: dialect.needsNamespaceSelector
      ? requiredSelector(namespaces)
      : readSelector(namespaces),
    pods: requiredSelector(child(field, 'podSelector')),
  };
}

function grammarOf(
  dialect: Dialect,
  peers: 'from' | 'to',
  forms: readonly PeerForm[],
): RuleGrammar {
  const { most, actions, port } = dialect;
  return {
    maxRules: most,
    members: ['name', 'action', peers, dialect.ports],
    name: (rule) => readRuleName(child(rule, 'name')),
    action: (rule) => readAction(child(rule, 'action'), actions),
    peers: (rule) =>
      someItems(child(rule, peers), most).flatMap((field) => readPeer(field, forms, dialect)),
    ports: (rule) => {
      const list = child(rule, dialect.ports);
      return isMissing(list) ? undefined : someItems(list, most).map(port);
    },
    check: (field, rule) => checkRule(child(field, dialect.ports), child(field, peers), rule),
  };
}

function readRuleName(field: Field): string {
  const name = isMissing(field) ? '' : text(field);
  const { length } = [...name];
  if (length > MAX_RULE_NAME) {
    fail(field, `must have at most ${MAX_RULE_NAME} characters, not ${length}`);
  }
  return name;
}

function readAction(field: Field, actions: Dialect['actions']): PolicyRule['action'] {
  const action = word(field, actions);
  return action === 'Accept' ? 'Allow' : action;
}

function readPeer(field: Field, forms: readonly PeerForm[], dialect: Dialect): Peer[] {
  const form = onlyMember(field, forms);
  const value = child(field, form);
  if (form === 'networks') return readNetworks(value);
  if (form === 'nodes') return [{ kind: 'nodes', selector: readSelector(value) }];
  if (form === 'domainNames') {
    const names = someItems(value, MAX_DOMAIN_NAMES);
    refuseDuplicates(names);
    return names.map((item) => ({ kind: 'domainName', pattern: domainName(item) }));
  }
  return [{ kind: 'pods', selection: readPods(value, form, dialect) }];
}

/** API servers refuse an item twice in a list that is a set; two ways to write one name are two items. */
function refuseDuplicates(list: readonly Field[]): void {
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
  portsField: Field,
  peersField: Field,
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
