/**
 * What AdminNetworkPolicies, BaselineAdminNetworkPolicies and ClusterNetworkPolicies have in common:
 * subjects, rules and peers. `policy.networking.k8s.io` of network-policy-api, v1alpha1, v1alpha2 and v1beta1.
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
  isMissing,
  members,
  onlyMember,
  optionalText,
  shown,
  someItems,
  text,
} from './read-field.ts';
import { type Metadata, readMetadata } from './read-metadata.ts';
import { readNetworks } from './read-networks.ts';
import { attempt, denyAll, type RuleGrammar, readRules } from './read-policy-rules.ts';
import { readSelector, requiredSelector } from './read-selector.ts';

type ClusterPolicyKind = Exclude<Policy['kind'], 'NetworkPolicy'>;
type PeerForm = 'namespaces' | 'pods' | 'nodes' | 'networks' | 'domainNames';

/** In what the kinds differ. */
export interface Dialect {
  readonly kind: ClusterPolicyKind;
  /** Beside `subject`, `ingress` and `egress`. */
  readonly specMembers: readonly string[];
  /** Where it stands; throws InvalidObject. */
  readonly tier: (spec: Field) => Policy['tier'];
  readonly priority: (spec: Field) => number;
  /** What else makes it invalid; throws InvalidObject. */
  readonly check: (metadata: Metadata) => void;
  readonly actions: ReadonlyMap<string, PolicyRule['action']>;
  readonly egressPeers: readonly PeerForm[];
  /** The member of a rule that has its ports. */
  readonly ports: 'ports' | 'protocols';
  readonly port: (field: Field) => PortMatch;
  /** At most so many rules a direction, peers and ports a rule. */
  readonly most: number;
  /** `pods` must have `namespaceSelector`, be it empty. */
  readonly needsNamespaceSelector: boolean;
}

const INGRESS_PEERS: readonly PeerForm[] = ['namespaces', 'pods'];
const MAX_DOMAIN_NAMES = 25;
const MAX_RULE_NAME = 100;

/**
 * A policy of such a kind. What its CRD would refuse, or what is not known here, becomes a fault, and
 * fails closed: see `read-policy-rules.ts`. Its place among others, if that cannot be read, is the first
 * of the Admin tier.
 * @throws InvalidObject when name or subject cannot be read: it is not known then whom it is about.
 */
export function readClusterPolicy(raw: unknown, dialect: Dialect): Policy {
  const read = readMetadata(dialect.kind, raw);
  const { root, metadata, key, name } = read;
  const spec = child(root, 'spec');
  const subject = readSubject(child(spec, 'subject'), dialect);
  const faults: PolicyFault[] = [];
  attempt(faults, () => members(spec, ['subject', 'ingress', 'egress', ...dialect.specMembers]));
  attempt(faults, () => dialect.check(read));
  const tier = attempt(faults, () => dialect.tier(spec)) ?? 'Admin';
  const priority = attempt(faults, () => dialect.priority(spec)) ?? 0;
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
    kind: dialect.kind,
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

function readAction(
  field: Field,
  actions: ReadonlyMap<string, PolicyRule['action']>,
): PolicyRule['action'] {
  const word = text(field);
  const action = actions.get(word);
  return (
    action ?? fail(field, `must be one of ${[...actions.keys()].join(', ')}, not ${shown(word)}`)
  );
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
