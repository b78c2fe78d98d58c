/** What policies decide for pods of this node, as resources of the status API. Pure. */
import { ADDRESS_BITS } from '../../api/addresses.ts';
import { compareText } from '../../api/collections.ts';
import type { IpFamily, ObjectKey } from '../../api/objects.ts';
import type { Pod } from '../../api/policy-objects.ts';
import type { Access, FamilyRange, PortDecision } from '../../policy/model/access.ts';
import type { DirectionVerdict, Explanation } from '../../policy/model/explain.ts';
import type { PolicyModel } from '../../policy/model/model.ts';
import type { PolicySetRules } from '../../policy/model/policy-sets.ts';
import { EVERY_PORT, isWholeProtocol, type SpaceRange } from '../../policy/model/port-space.ts';
import { addressText } from '../../policy/model/ranges.ts';
import type { Direction } from '../../policy/model/terms.ts';
import type {
  AccessDecision,
  AccessPeer,
  AppliedPolicies,
  DirectionExplanation,
  FamilyExplanation,
  LocalPod,
  PodAccess,
} from '../api/policies.ts';

const MAX_POLICIES = 20;
const MAX_NAMES = 10;
const MAX_PORTS = 50;

export function localPod(model: PolicyModel, pod: Pod): LocalPod {
  const { namespace, name, addresses } = pod;
  const applied = (direction: Direction) => model.withRules(pod, direction, appliedPolicies);
  return { namespace, name, addresses, ingress: applied('ingress'), egress: applied('egress') };
}

function appliedPolicies({ admin, lowerTiers, isolatedBy }: PolicySetRules): AppliedPolicies {
  const policies = [
    ...admin.map(({ policy }) => policy),
    // A policy without rules isolates, too.
    ...isolatedBy,
    ...lowerTiers.map(({ policy }) => policy),
  ];
  const names = [...new Set(policies)].map(({ kind, key }) => `${kind} ${key}`);
  return {
    policies: names.slice(0, MAX_POLICIES),
    total: names.length,
    isolated: isolatedBy.length > 0,
  };
}

export function podAccess(
  pod: ObjectKey,
  { direction, peers, isRest, decisions, uncertain }: Access,
): PodAccess {
  return {
    pod,
    direction,
    peer: { ...peerOf(peers), rest: isRest },
    decisions: decisions.map(decisionOf),
    uncertain,
  };
}

/** Formats only the names that the answer has: a group may have 10,000. */
function peerOf(peers: Access['peers']): Omit<AccessPeer, 'rest'> {
  const { kind } = peers;
  const fields = { kind, namespaces: [], family: null };
  switch (peers.kind) {
    case 'pods': {
      const namespaces = new Set(peers.pods.map(({ namespace }) => namespace));
      return {
        kind,
        names: smallest(peers.pods, MAX_NAMES),
        total: peers.pods.length,
        namespaces: [...namespaces].sort(compareText).slice(0, MAX_NAMES),
        family: peers.family ?? null,
      };
    }
    case 'nodes': {
      const { addresses } = peers;
      return { ...fields, names: addresses.slice(0, MAX_NAMES), total: addresses.length };
    }
    case 'addresses': {
      const { ranges } = peers;
      const names = ranges.slice(0, MAX_NAMES).map(rangeText);
      return { ...fields, names, total: ranges.length, family: onlyFamily(ranges) };
    }
    case 'domainName':
      return { ...fields, names: [peers.pattern], total: 1, family: onlyOne(peers.families) };
    case 'ownNode':
      return { ...fields, names: [], total: 0 };
  }
}

/** The first keys in their order, without sorting all of them. */
function smallest(pods: readonly Pod[], count: number): string[] {
  const found: string[] = [];
  for (const { key } of pods) {
    const last = found.at(-1);
    if (found.length === count && last !== undefined && compareText(key, last) > 0) continue;
    found.push(key);
    found.sort(compareText);
    if (found.length > count) found.pop();
  }
  return found;
}

function onlyFamily(ranges: readonly FamilyRange[]): IpFamily | null {
  return onlyOne(ranges.map(({ family }) => family));
}

function onlyOne(families: readonly IpFamily[]): IpFamily | null {
  const [family, ...others] = new Set(families);
  return others.length > 0 ? null : (family ?? null);
}

/** A CIDR if the range is one. */
function rangeText({ family, first, last }: FamilyRange): string {
  const size = last - first + 1n;
  const hostBits = size.toString(2).length - 1;
  const isNetwork = size === 1n << BigInt(hostBits) && first % size === 0n;
  if (isNetwork) return `${addressText(first, family)}/${ADDRESS_BITS[family] - hostBits}`;
  return `${addressText(first, family)}-${addressText(last, family)}`;
}

function decisionOf(decision: PortDecision): AccessDecision {
  const { ports, verdict, tier, policies, rule, reason, passedBy } = decision;
  const texts = portTexts(ports);
  return {
    ports: texts.slice(0, MAX_PORTS),
    portsTotal: texts.length,
    verdict,
    tier: tier ?? null,
    policies,
    rule: rule ?? null,
    reason,
    passedBy: passedBy ?? null,
  };
}

function portTexts(ports: readonly SpaceRange[]): string[] {
  const isAll = ports.length === EVERY_PORT.length && ports.every(isWholeProtocol);
  if (isAll) return ['all'];
  return ports.map((range) => {
    const { protocol, from, to } = range;
    if (protocol === 'other') return 'other protocols';
    if (isWholeProtocol(range)) return `${protocol} all`;
    return `${protocol} ${from === to ? from : `${from}-${to}`}`;
  });
}

export function familyExplanation(explained: Explanation): FamilyExplanation {
  const { family, from, to, verdict, egress, ingress } = explained;
  return {
    family,
    from,
    to: to ?? null,
    verdict,
    egress: directionExplanation(egress),
    ingress: directionExplanation(ingress),
  };
}

function directionExplanation(given: DirectionVerdict): DirectionExplanation {
  const { verdict, tier, policies, rule, reason, uncertain, notLearned } = given;
  const [decidedTier, decidedRule] = [tier ?? null, rule ?? null];
  return { verdict, tier: decidedTier, policies, rule: decidedRule, reason, uncertain, notLearned };
}
