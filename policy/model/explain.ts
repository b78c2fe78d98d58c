/**
 * Why a connection is allowed or denied, by the policy sets and lists that the kernel's rules are made
 * of, judged here as they are judged there. For pods of other nodes, by what applies to them there.
 */
import { familyOf } from '../../api/addresses.ts';
import { IP_FAMILIES, type IpFamily, type ObjectKey, type Protocol } from '../../api/objects.ts';
import type { Pod, Policy } from '../../api/policy-objects.ts';
import { protocolNumbers } from '../../netlink/core/protocol.ts';
import { NamePatterns } from './domain-names.ts';
import type { PeerList, PortList } from './lists.ts';
import type { PolicyModel } from './model.ts';
import type { PolicySetRules } from './policy-sets.ts';
import { isEverything } from './ranges.ts';
import type { Rule } from './rules.ts';
import type { Direction, ListNumber, Outcome } from './terms.ts';

/** An end of a connection. An address that a pod has is that pod. */
export type ConnectionEnd =
  | { readonly pod: ObjectKey }
  | { readonly address: string }
  /** With the address that it has, if that is known. */
  | { readonly name: string; readonly address?: string };

export interface Question {
  readonly from: Exclude<ConnectionEnd, { readonly name: string }>;
  readonly to: ConnectionEnd;
  readonly port: number;
  readonly protocol: Protocol;
  /** Whether an address is in force for a domain name of a list. Without, nobody knows but of `to.name`. */
  readonly learned?: (list: ListNumber, address: string) => boolean;
}

/** What policy says of one direction. */
export interface Judgement {
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
  readonly egress: Judgement;
  readonly ingress: Judgement;
}

/** There is no such pod, or it has no address. */
export class UnknownPod extends Error {
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
  readonly learned: Question['learned'];
}

/**
 * @returns one explanation for each family that both ends have.
 * @throws UnknownPod when the pod is not there, or has no address of its own.
 */
export function explain(model: PolicyModel, question: Question): Explanation[] {
  const { port, to: target, learned } = question;
  const protocol = protocolNumbers[question.protocol];
  const name = 'name' in target ? target.name : undefined;
  const sources = addressesOf(model, question.from);
  const targets = addressesOf(model, target);
  return IP_FAMILIES.flatMap((family) => {
    const from = sources.find((address) => familyOf(address) === family);
    const to = targets.find((address) => familyOf(address) === family);
    const isNameOnly = name !== undefined && targets.length === 0;
    if (from === undefined || (to === undefined && !isNameOnly)) return [];
    return explainOne(model, { family, from, to, name, port, protocol, learned });
  });
}

/** Of a name without an address: none. */
function addressesOf(model: PolicyModel, endpoint: ConnectionEnd): readonly string[] {
  if ('address' in endpoint && endpoint.address !== undefined) return [endpoint.address];
  if (!('pod' in endpoint)) return [];
  const pod = model.pod(endpoint.pod);
  if (pod === undefined) throw new UnknownPod(endpoint.pod, 'there is no such pod');
  if (pod.finished) throw new UnknownPod(endpoint.pod, 'the pod has finished');
  if (pod.addresses.length === 0) throw new UnknownPod(endpoint.pod, 'it has no address yet');
  const own = pod.addresses.filter((address) => pod.hostNetwork || model.podAt(address) === pod);
  if (own.length > 0) return own;
  throw new UnknownPod(endpoint.pod, 'its address belongs to a newer pod now');
}

function explainOne(model: PolicyModel, connection: Connection): Explanation {
  const { family, from, to } = connection;
  const egress = judgeAt(model, 'egress', from, connection);
  const ingress = judgeAt(model, 'ingress', to, connection);
  const isAllowed = egress.verdict === 'allow' && ingress.verdict === 'allow';
  return { family, from, to, verdict: isAllowed ? 'allow' : 'deny', egress, ingress };
}

/** @param end whose pod sends the connection, or gets it. */
function judgeAt(
  model: PolicyModel,
  direction: Direction,
  end: string | undefined,
  connection: Connection,
): Judgement {
  const { from, to } = connection;
  if (end === undefined)
    return unjudged(direction, 'not checked, because the address of the name is unknown');
  const pod = model.podAt(end);
  if (pod === undefined) return unjudged(direction, `${end} is no pod, so no policy applies`);
  if (from === to) return unjudged(direction, 'a pod may always connect to itself');
  if (direction === 'ingress' && model.isNodeOf(pod, from))
    return unjudged(direction, 'a node may always connect to its own pods');
  return judge(model, pod, direction, connection);
}

function unjudged(direction: Direction, reason: string): Judgement {
  const nobody = { tier: undefined, policies: [], rule: undefined, uncertain: [] };
  return { direction, verdict: 'allow', ...nobody, reason };
}

function judge(
  model: PolicyModel,
  pod: Pod,
  direction: Direction,
  connection: Connection,
): Judgement {
  return model.withRules(pod, direction, (rules) => {
    const uncertain: Rule[] = [];
    const first = (some: readonly Rule[]) =>
      some.find((each) => {
        const fit = fits(model, each, direction, connection);
        if (fit === 'maybe') uncertain.push(each);
        return fit === 'yes';
      });
    const admin = first(rules.admin);
    const passed = admin?.outcome === 'pass' ? `${admin.comment} passes it to the next tier; ` : '';
    const decisive = admin === undefined || passed !== '' ? first(rules.rest) : admin;
    const found = decisive === undefined ? byDefault(rules) : byRule(decisive);
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

type Found = Omit<Judgement, 'direction' | 'uncertain'>;

function byRule({ outcome, comment, policy, source }: Rule): Found {
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

function verdictOf(outcome: Outcome): Judgement['verdict'] {
  return outcome === 'allow' ? 'allow' : 'deny';
}

function byDefault({ isolatedBy }: PolicySetRules): Found {
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
function fits(
  model: PolicyModel,
  { peers, ports }: Rule,
  direction: Direction,
  connection: Connection,
): 'yes' | 'no' | 'maybe' {
  if (ports !== undefined && !hasPort(model, ports, connection)) return 'no';
  if (peers === undefined) return 'yes';
  const { family, from, to, name, learned } = connection;
  const other = direction === 'egress' ? to : from;
  const isNamed = direction === 'egress' && name !== undefined;
  if (isNamed && new NamePatterns(peers.names.map((each) => [each, each])).matches(name))
    return 'yes';
  if (other !== undefined) {
    return model.hasPeer(peers, other, family) ? 'yes' : isLearned(peers, other, learned);
  }
  const networks = model.networksOf(peers, family);
  if (isEverything(networks, family)) return 'yes';
  return networks.length > 0 ? 'maybe' : 'no';
}

function isLearned(
  { sets, number }: PeerList,
  address: string,
  learned: Connection['learned'],
): 'yes' | 'no' | 'maybe' {
  if (!sets.includes('learned')) return 'no';
  if (learned === undefined) return 'maybe';
  return learned(number, address) ? 'yes' : 'no';
}

function hasPort(
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
