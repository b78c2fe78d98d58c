/**
 * Why a connection is allowed or denied, by the policy sets and lists that the kernel's rules are made
 * of, judged here as they are judged there. For pods of other nodes, by what applies to them there.
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

/** An end of a connection. An address that a pod has is that pod. */
export type ConnectionEnd =
  | { readonly pod: ObjectKey }
  | { readonly address: string }
  /** With the address that it has, if that is known. */
  | { readonly name: string; readonly address?: string };

export interface ConnectionQuery {
  readonly from: Exclude<ConnectionEnd, { readonly name: string }>;
  readonly to: ConnectionEnd;
  readonly port: number;
  readonly protocol: Protocol;
  /** Whether an address is in force for a domain name of a list. Without, nobody knows but of `to.name`. */
  readonly isFqdnAddress?: (list: ListId, address: string) => boolean;
}

/** What policy says of one direction. */
export interface DirectionVerdict {
  readonly direction: Direction;
  readonly verdict: 'allow' | 'deny';
  /** undefined: no policy decides. */
  readonly tier: Policy['tier'] | undefined;
  /** `NetworkPolicy default/web`: the one that decides, or all those that isolate the pod. */
  readonly policies: readonly string[];
  /** `spec.egress[2]`; undefined where no rule decides. */
  readonly rule: string | undefined;
  /** For people. */
  readonly reason: string;
  /**
   * Rules before that would decide otherwise if the name had an address in their networks, or if the
   * address were known for a domain name of theirs.
   */
  readonly uncertain: readonly string[];
}

/** Of one family in which the connection is possible. */
export interface Explanation {
  readonly family: IpFamily;
  readonly from: string;
  /** undefined for a name without one. */
  readonly to: string | undefined;
  /** Both directions have to allow. */
  readonly verdict: 'allow' | 'deny';
  readonly egress: DirectionVerdict;
  readonly ingress: DirectionVerdict;
}

/** There is no such pod, or it has no address. */
export class UnknownPodError extends Error {
  override readonly name = 'UnknownPod';

  constructor(key: ObjectKey, reason: string) {
    super(`${key}: ${reason}`);
  }
}

/** One connection, as packets show it and as they do not. */
interface Connection {
  readonly family: IpFamily;
  readonly from: string;
  readonly to: string | undefined;
  readonly name: string | undefined;
  readonly port: number;
  readonly protocol: number;
  readonly isFqdnAddress: ConnectionQuery['isFqdnAddress'];
}

/**
 * @returns one explanation for each family that both ends have.
 * @throws UnknownPod when the pod is not there, or has no address of its own.
 */
export function explain(model: PolicyModel, question: ConnectionQuery): Explanation[] {
  const { port, to: target, isFqdnAddress: learned } = question;
  const protocol = protocolNumbers[question.protocol];
  const name = 'name' in target ? target.name : undefined;
  const sources = addressesOf(model, question.from);
  const targets = addressesOf(model, target);
  return IP_FAMILIES.flatMap((family) => {
    const from = sources.find((address) => familyOf(address) === family);
    const to = targets.find((address) => familyOf(address) === family);
    const isNameOnly = name !== undefined && targets.length === 0;
    if (from === undefined || (to === undefined && !isNameOnly)) return [];
    return explainOne(model, { family, from, to, name, port, protocol, isFqdnAddress: learned });
  });
}

/** Of a name without an address: none. */
function addressesOf(model: PolicyModel, endpoint: ConnectionEnd): readonly string[] {
  if ('address' in endpoint && endpoint.address !== undefined) return [endpoint.address];
  if (!('pod' in endpoint)) return [];
  const pod = model.pod(endpoint.pod);
  if (pod === undefined) throw new UnknownPodError(endpoint.pod, 'there is no such pod');
  if (pod.finished) throw new UnknownPodError(endpoint.pod, 'the pod has finished');
  if (pod.addresses.length === 0) throw new UnknownPodError(endpoint.pod, 'it has no address yet');
  const own = pod.addresses.filter((address) => pod.hostNetwork || model.podAt(address) === pod);
  if (own.length > 0) return own;
  throw new UnknownPodError(endpoint.pod, 'its address belongs to a newer pod now');
}

function explainOne(model: PolicyModel, connection: Connection): Explanation {
  const { family, from, to } = connection;
  const egress = evaluateAt(model, 'egress', from, connection);
  const ingress = evaluateAt(model, 'ingress', to, connection);
  const isAllowed = egress.verdict === 'allow' && ingress.verdict === 'allow';
  return { family, from, to, verdict: isAllowed ? 'allow' : 'deny', egress, ingress };
}

/** @param end whose pod sends the connection, or gets it. */
function evaluateAt(
  model: PolicyModel,
  direction: Direction,
  end: string | undefined,
  connection: Connection,
): DirectionVerdict {
  const { from, to } = connection;
  if (end === undefined)
    return notEvaluated(direction, 'not checked, because the address of the name is unknown');
  const pod = model.podAt(end);
  if (pod === undefined) return notEvaluated(direction, `${end} is no pod, so no policy applies`);
  if (from === to) return notEvaluated(direction, 'a pod may always connect to itself');
  if (direction === 'ingress' && model.isNodeOf(pod, from))
    return notEvaluated(direction, 'a node may always connect to its own pods');
  return evaluate(model, pod, direction, connection);
}

function notEvaluated(direction: Direction, reason: string): DirectionVerdict {
  const nobody = { tier: undefined, policies: [], rule: undefined, uncertain: [] };
  return { direction, verdict: 'allow', ...nobody, reason };
}

function evaluate(
  model: PolicyModel,
  pod: Pod,
  direction: Direction,
  connection: Connection,
): DirectionVerdict {
  return model.withRules(pod, direction, (rules) => {
    const uncertain: PolicySetRule[] = [];
    const first = (some: readonly PolicySetRule[]) =>
      some.find((each) => {
        const fit = matchesRule(model, each, direction, connection);
        if (fit === 'maybe') uncertain.push(each);
        return fit === 'yes';
      });
    const admin = first(rules.admin);
    const passed = admin?.outcome === 'pass' ? `${admin.comment} passes it to the next tier; ` : '';
    const decisive = admin === undefined || passed !== '' ? first(rules.lowerTiers) : admin;
    const found = decisive === undefined ? decidedByDefault(rules) : decidedByRule(decisive);
    return {
      direction,
      ...found,
      reason: `${passed}${found.reason}`,
      uncertain: uncertain
        .filter(({ outcome }) => outcome === 'pass' || verdictOf(outcome) !== found.verdict)
        .map(({ comment }) => comment),
    };
  });
}

type Decision = Omit<DirectionVerdict, 'direction' | 'uncertain'>;

function decidedByRule({ outcome, comment, policy, source }: PolicySetRule): Decision {
  const policies = [nameOf(policy)];
  const decision = { tier: policy.tier, policies, rule: source.path };
  const verdict = verdictOf(outcome);
  const title = source.name === '' ? comment : `${comment} (${source.name})`;
  if (source.action === 'Pass') {
    const reason = `${title} passes it on, and there is no further tier`;
    return { verdict, ...decision, reason };
  }
  return {
    verdict,
    ...decision,
    reason: `${title} ${verdict === 'allow' ? 'allows' : 'denies'} it`,
  };
}

function verdictOf(outcome: RuleVerdict): DirectionVerdict['verdict'] {
  return outcome === 'allow' ? 'allow' : 'deny';
}

function decidedByDefault({ isolatedBy }: PolicySetRules): Decision {
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

/** `maybe`: it depends on which address a name has, or which name the address. */
function matchesRule(
  model: PolicyModel,
  { peers, ports }: PolicySetRule,
  direction: Direction,
  connection: Connection,
): 'yes' | 'no' | 'maybe' {
  if (ports !== undefined && !matchesPort(model, ports, connection)) return 'no';
  if (peers === undefined) return 'yes';
  const { family, from, to, name, isFqdnAddress: learned } = connection;
  const other = direction === 'egress' ? to : from;
  const isNamed = direction === 'egress' && name !== undefined;
  if (isNamed && new NamePatterns(peers.names.map((each) => [each, each])).matches(name))
    return 'yes';
  if (other !== undefined) {
    return model.hasPeer(peers, other, family) ? 'yes' : matchesFqdn(peers, other, learned);
  }
  const networks = model.networksOf(peers, family);
  if (coversFamily(networks, family)) return 'yes';
  return networks.length > 0 ? 'maybe' : 'no';
}

function matchesFqdn(
  { sets, number }: PeerList,
  address: string,
  learned: Connection['isFqdnAddress'],
): 'yes' | 'no' | 'maybe' {
  if (!sets.includes('learned')) return 'no';
  if (learned === undefined) return 'maybe';
  return learned(number, address) ? 'yes' : 'no';
}

function matchesPort(
  model: PolicyModel,
  { number, ranges }: PortList,
  { to, port, protocol }: Connection,
): boolean {
  const isInRange = ranges.some(
    (range) =>
      protocolNumbers[range.protocol] === protocol && range.from <= port && port <= range.to,
  );
  if (isInRange || to === undefined) return isInRange;
  return model
    .namedPortsAt(to)
    .some((named) => named.list === number && named.protocol === protocol && named.port === port);
}
