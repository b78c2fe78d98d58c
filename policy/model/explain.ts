/**
 * Explains why a connection is allowed or denied. Evaluates the policy sets and lists that the
 * kernel rules are compiled from, in the order of the kernel rules. A pod of another node is
 * evaluated as the agent on that node evaluates it.
 */
import { familyOf } from '../../api/addresses.ts';
import { IP_FAMILIES, type IpFamily, type ObjectKey, type Protocol } from '../../api/objects.ts';
import type { Pod, Policy } from '../../api/policy-objects.ts';
import { protocolNumbers } from '../../netlink/core/protocol.ts';
import { NamePatterns } from './domain-names.ts';
import type { PolicyModel } from './model.ts';
import type { PolicySetRules } from './policy-sets.ts';
import { coversFamily } from './ranges.ts';
import type { PeerList, PortList } from './rule-lists.ts';
import type { PolicySetRule } from './rules.ts';
import type { Direction, ListId, RuleVerdict } from './terms.ts';

/** An end of a connection. An address that a pod owns identifies the pod. */
export type ConnectionEnd =
  | { readonly pod: ObjectKey }
  | { readonly address: string }
  /** A domain name, with its address if known. */
  | { readonly name: string; readonly address?: string };

export interface ConnectionQuery {
  readonly from: Exclude<ConnectionEnd, { readonly name: string }>;
  readonly to: ConnectionEnd;
  readonly port: number;
  /** A number is an IP protocol. Rules with ports match only TCP, UDP and SCTP. */
  readonly protocol: Protocol | number;
  /**
   * Whether the FQDN cache has an address for a peer list. Without this function, it is uncertain
   * whether a rule with domain names matches an address.
   */
  readonly isFqdnAddress?: (list: ListId, address: string) => boolean;
}

/** The verdict for one direction. */
export interface DirectionVerdict {
  readonly direction: Direction;
  readonly verdict: 'allow' | 'deny';
  /** undefined: no policy decides. */
  readonly tier: Policy['tier'] | undefined;
  /**
   * The deciding policy, such as `NetworkPolicy default/web`, or all NetworkPolicies that isolate
   * the pod.
   */
  readonly policies: readonly string[];
  /** Path of the deciding rule, such as `spec.egress[2]`; undefined if no rule decides. */
  readonly rule: string | undefined;
  /** One sentence for the user. */
  readonly reason: string;
  /**
   * Earlier rules (policy and path) that may decide otherwise. Their networks may contain the
   * unknown address of the domain name, or the FQDN cache may have the address for one of their
   * domain names.
   */
  readonly uncertain: readonly string[];
  /**
   * Earlier rules (policy, path and domain names) that would decide otherwise if the FQDN cache had
   * the address.
   */
  readonly notLearned: readonly string[];
}

/** The result for one IP family. */
export interface Explanation {
  readonly family: IpFamily;
  readonly from: string;
  /** undefined for a domain name whose address is unknown. */
  readonly to: string | undefined;
  /** `allow` if both directions allow. */
  readonly verdict: 'allow' | 'deny';
  readonly egress: DirectionVerdict;
  readonly ingress: DirectionVerdict;
}

/** The pod does not exist, has finished, or owns no address. */
export class UnknownPodError extends Error {
  override readonly name = 'UnknownPod';

  constructor(key: ObjectKey, reason: string) {
    super(`${key}: ${reason}`);
  }
}

/** The connection to evaluate. */
interface Connection {
  readonly family: IpFamily;
  /** undefined: an unknown address outside the cluster. */
  readonly from: string | undefined;
  readonly to: string | undefined;
  readonly name: string | undefined;
  readonly port: number;
  readonly protocol: number;
  readonly isFqdnAddress: ConnectionQuery['isFqdnAddress'];
}

/**
 * @returns one explanation for each IP family that both ends have. A domain name whose address is
 * unknown has every family of the source.
 * @throws UnknownPodError if a pod does not exist or owns no address.
 */
export function explain(model: PolicyModel, query: ConnectionQuery): Explanation[] {
  return connectionsOf(model, query).map((connection) => explainOne(model, connection));
}

/**
 * Evaluates one direction of a connection between two addresses: half the work of `explain`.
 * @returns undefined if the addresses differ in their IP family.
 */
export function explainDirection(
  model: PolicyModel,
  direction: Direction,
  query: ConnectionQuery & { readonly from: { address: string }; readonly to: { address: string } },
): DirectionVerdict | undefined {
  const [connection] = connectionsOf(model, query);
  return connection && evaluateDirection(model, direction, connection);
}

/**
 * Evaluates a connection from an unknown address outside the cluster to an address. Rules whose networks contain only some
 * addresses are `uncertain` if they would decide otherwise.
 */
export function explainFromOutside(
  model: PolicyModel,
  {
    to,
    port,
    protocol,
  }: { readonly to: string; readonly port: number; readonly protocol: Protocol },
): Pick<Explanation, 'verdict' | 'egress' | 'ingress'> {
  const ingress = evaluateDirection(model, 'ingress', {
    family: familyOf(to),
    from: undefined,
    to,
    name: undefined,
    port,
    protocol: protocolNumbers[protocol],
    isFqdnAddress: undefined,
  });
  const egress = notEvaluated('egress', 'the source is outside the cluster, so no policy applies');
  return { verdict: ingress.verdict, egress, ingress };
}

/** A connection whose source is known. */
type KnownConnection = Connection & { readonly from: string };

/** The connections of a query, one for each IP family. */
function connectionsOf(model: PolicyModel, query: ConnectionQuery): KnownConnection[] {
  const { port, to: target, isFqdnAddress } = query;
  const protocol =
    typeof query.protocol === 'number' ? query.protocol : protocolNumbers[query.protocol];
  const name = 'name' in target ? target.name : undefined;
  const sources = addressesOf(model, query.from);
  const targets = addressesOf(model, target);
  return IP_FAMILIES.flatMap((family) => {
    const from = sources.find((address) => familyOf(address) === family);
    const to = targets.find((address) => familyOf(address) === family);
    const isNameOnly = name !== undefined && targets.length === 0;
    if (from === undefined || (to === undefined && !isNameOnly)) return [];
    return { family, from, to, name, port, protocol, isFqdnAddress };
  });
}

/** The addresses of an end; none for a domain name whose address is unknown. */
function addressesOf(model: PolicyModel, end: ConnectionEnd): readonly string[] {
  if ('address' in end && end.address !== undefined) return [end.address];
  if (!('pod' in end)) return [];
  const pod = model.pod(end.pod);
  if (pod === undefined) throw new UnknownPodError(end.pod, 'the pod does not exist');
  if (pod.finished) throw new UnknownPodError(end.pod, 'the pod has finished');
  if (pod.addresses.length === 0) throw new UnknownPodError(end.pod, 'the pod has no address yet');
  const owned = pod.addresses.filter((address) => pod.hostNetwork || model.podAt(address) === pod);
  if (owned.length > 0) return owned;
  throw new UnknownPodError(end.pod, 'the address of the pod belongs to a newer pod now');
}

function explainOne(model: PolicyModel, connection: KnownConnection): Explanation {
  const { family, from, to } = connection;
  const egress = evaluateDirection(model, 'egress', connection);
  const ingress = evaluateDirection(model, 'ingress', connection);
  const isAllowed = egress.verdict === 'allow' && ingress.verdict === 'allow';
  return { family, from, to, verdict: isAllowed ? 'allow' : 'deny', egress, ingress };
}

function evaluateDirection(
  model: PolicyModel,
  direction: Direction,
  connection: Connection,
): DirectionVerdict {
  const { from, to } = connection;
  /** Address of the subject. */
  const end = direction === 'egress' ? from : to;
  if (end === undefined)
    return notEvaluated(
      direction,
      'the address of the domain name is unknown, so no policy of a destination pod is evaluated',
    );
  const pod = model.podAt(end);
  if (pod === undefined)
    return notEvaluated(direction, `no Pod has address ${end}, so no policy applies`);
  if (from === to) return notEvaluated(direction, 'a pod may always connect to itself');
  if (direction === 'ingress' && from !== undefined && model.isNodeOf(pod, from))
    return notEvaluated(direction, 'a node may always connect to its own pods');
  return evaluate(model, pod, direction, connection);
}

function notEvaluated(direction: Direction, reason: string): DirectionVerdict {
  const none = { tier: undefined, policies: [], rule: undefined, uncertain: [], notLearned: [] };
  return { direction, verdict: 'allow', ...none, reason };
}

function evaluate(
  model: PolicyModel,
  pod: Pod,
  direction: Direction,
  connection: Connection,
): DirectionVerdict {
  return model.withRules(pod, direction, (rules) => {
    const uncertain: PolicySetRule[] = [];
    const notLearned: PolicySetRule[] = [];
    const firstMatch = (tier: readonly PolicySetRule[]) =>
      tier.find((each) => {
        const match = matchesRule(model, each, direction, connection);
        if (match === 'maybe') uncertain.push(each);
        if (match === 'not learned') notLearned.push(each);
        return match === 'yes';
      });
    const admin = firstMatch(rules.admin);
    const passed = admin?.verdict === 'pass' ? `${admin.comment} passes it to the next tier; ` : '';
    const decisive = admin === undefined || passed !== '' ? firstMatch(rules.lowerTiers) : admin;
    const found = decisive === undefined ? decidedByDefault(rules) : decidedByRule(decisive);
    const decidesOtherwise = ({ verdict }: PolicySetRule) =>
      verdict === 'pass' || allowOrDeny(verdict) !== found.verdict;
    return {
      direction,
      ...found,
      reason: `${passed}${found.reason}`,
      uncertain: uncertain.filter(decidesOtherwise).map(({ comment }) => comment),
      notLearned: notLearned
        .filter(decidesOtherwise)
        .map(({ comment, peers }) => `${comment} (${peers?.domainNames.join(', ')})`),
    };
  });
}

/** What decides, see `DirectionVerdict`. */
export type Decision = Omit<DirectionVerdict, 'direction' | 'uncertain' | 'notLearned'>;

/** The decision of a rule that matches; not for a rule that passes to the next tier. */
export function decidedByRule({
  verdict: ruleVerdict,
  comment,
  policy,
  source,
}: PolicySetRule): Decision {
  const policies = [nameOf(policy)];
  const decision = { tier: policy.tier, policies, rule: source.path };
  const verdict = allowOrDeny(ruleVerdict);
  const title = source.name === '' ? comment : `${comment} (${source.name})`;
  if (source.action === 'Pass') {
    const reason = `${title} passes it, and the default after the last tier allows it`;
    return { verdict, ...decision, reason };
  }
  return {
    verdict,
    ...decision,
    reason: `${title} ${verdict === 'allow' ? 'allows' : 'denies'} it`,
  };
}

function allowOrDeny(verdict: RuleVerdict): DirectionVerdict['verdict'] {
  return verdict === 'allow' ? 'allow' : 'deny';
}

/** The decision if no rule matches. */
export function decidedByDefault({ isolatedBy }: PolicySetRules): Decision {
  const policies = isolatedBy.map(nameOf);
  if (policies.length === 0) {
    const reason = 'no rule matches, and no NetworkPolicy isolates the pod';
    return { verdict: 'allow', tier: undefined, policies, rule: undefined, reason };
  }
  const rules = policies.length === 1 ? 'none of its rules' : 'none of their rules';
  const reason = `the pod is isolated by ${policies.join(', ')}, and ${rules} allows it`;
  return { verdict: 'deny', tier: 'NetworkPolicy', policies, rule: undefined, reason };
}

function nameOf({ kind, key }: Policy): string {
  return `${kind} ${key}`;
}

/**
 * `maybe`: the match depends on an unknown address or on the unknown FQDN cache. `not learned`: a
 * rule with domain names does not match, because the FQDN cache lacks the address.
 */
type RuleMatch = 'yes' | 'no' | 'maybe' | 'not learned';

function matchesRule(
  model: PolicyModel,
  { peers, ports }: PolicySetRule,
  direction: Direction,
  connection: Connection,
): RuleMatch {
  if (ports !== undefined && !matchesPort(model, ports, connection)) return 'no';
  if (peers === undefined) return 'yes';
  const { family, from, to, name, isFqdnAddress } = connection;
  const peerAddress = direction === 'egress' ? to : from;
  const isNamed = direction === 'egress' && name !== undefined;
  if (isNamed && new NamePatterns(peers.domainNames.map((each) => [each, each])).matches(name))
    return 'yes';
  if (peerAddress !== undefined) {
    return model.hasPeer(peers, peerAddress, family)
      ? 'yes'
      : matchesFqdn(peers, peerAddress, isFqdnAddress);
  }
  const networks = model.networksOf(peers, family);
  if (coversFamily(networks, family)) return 'yes';
  return networks.length > 0 ? 'maybe' : 'no';
}

function matchesFqdn(
  { sets, id }: PeerList,
  address: string,
  isFqdnAddress: Connection['isFqdnAddress'],
): RuleMatch {
  if (!sets.includes('fqdn-peers')) return 'no';
  if (isFqdnAddress === undefined) return 'maybe';
  return isFqdnAddress(id, address) ? 'yes' : 'not learned';
}

function matchesPort(
  model: PolicyModel,
  { id, ranges }: PortList,
  { to, port, protocol }: Connection,
): boolean {
  const isInRange = ranges.some(
    (range) =>
      protocolNumbers[range.protocol] === protocol && range.from <= port && port <= range.to,
  );
  if (isInRange || to === undefined) return isInRange;
  return model
    .namedPortsAt(to)
    .some((named) => named.list === id && named.protocol === protocol && named.port === port);
}
