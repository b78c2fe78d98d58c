/** All policies, and the sets of them that together apply to pods of this node. */
import { compareText, getOrCreate } from '../../api/collections.ts';
import type { ObjectKey } from '../../api/objects.ts';
import type { Policy, PolicyKind } from '../../api/policy-objects.ts';
import { NamespaceIndex } from './namespace-index.ts';
import type { PodClass } from './pods.ts';
import type { RuleLists } from './rule-lists.ts';
import { acquireRules, type PolicySetRule, releaseRules } from './rules.ts';
import { selectsPod } from './selectors.ts';
import { DIRECTIONS, type Direction } from './terms.ts';

/** Policies that together apply to a pod in one direction. Pods to which the same ones apply share it. */
export interface PolicySet {
  /** Never used again while the agent runs. */
  readonly number: number;
  readonly direction: Direction;
  readonly key: string;
  readonly policies: readonly StoredPolicy[];
  uses: number;
}

interface StoredPolicy {
  readonly id: string;
  /** undefined: it was deleted; `settle()` drops the sets that contain it. */
  policy: Policy | undefined;
  readonly sets: Set<PolicySet>;
  /** For directions in which a set contains it. */
  readonly rules: Partial<Record<Direction, readonly PolicySetRule[]>>;
}

/** The rules of a policy set, in the order in which they are judged. */
export interface PolicySetRules {
  /** The Admin tier; empty where none applies. What nothing matches goes on. */
  readonly admin: readonly PolicySetRule[];
  /** NetworkPolicies or, where none isolates, the Baseline tier. */
  readonly lowerTiers: readonly PolicySetRule[];
  /** NetworkPolicies, if there are: what nothing in `rest` matches is denied. */
  readonly isolatedBy: readonly Policy[];
}

type Assignment = Readonly<Record<Direction, PolicySet | undefined>>;

const NO_POLICIES: Assignment = { ingress: undefined, egress: undefined };

export class PolicySets {
  readonly #lists: RuleLists;
  readonly #policies = new Map<string, StoredPolicy>();
  readonly #bySubject = new NamespaceIndex<StoredPolicy>();
  readonly #sets = new Map<string, PolicySet>();
  /** Sets of each class with pods of this node. */
  readonly #assigned = new Map<PodClass, Assignment>();
  /** Classes whose sets may have changed. */
  readonly #dirtyClasses = new Set<PodClass>();
  readonly #changedPolicies = new Set<StoredPolicy>();
  readonly #dirtySets = new Set<PolicySet>();
  #lastId = 0;

  constructor(lists: RuleLists) {
    this.#lists = lists;
  }

  upsert(policy: Policy): void {
    const id = idOf(policy.kind, policy.key);
    const fresh = () => ({ id, policy: undefined, sets: new Set<PolicySet>(), rules: {} });
    this.#replace(getOrCreate<string, StoredPolicy>(this.#policies, id, fresh), policy);
  }

  remove(kind: PolicyKind, key: ObjectKey): void {
    const stored = this.#policies.get(idOf(kind, key));
    if (stored !== undefined) this.#replace(stored, undefined);
  }

  get(kind: PolicyKind, key: ObjectKey): Policy | undefined {
    return this.#policies.get(idOf(kind, key))?.policy;
  }

  *all(): Iterable<Policy> {
    for (const { policy } of this.#policies.values()) if (policy !== undefined) yield policy;
  }

  /** Finds the sets of a class anew: policies, labels, or whether it has pods of this node may have changed. */
  markDirty(pods: PodClass): void {
    this.#dirtyClasses.add(pods);
  }

  /** The sets that judge the pods of a class on this node. */
  of(pods: PodClass): Assignment {
    return this.#assigned.get(pods) ?? NO_POLICIES;
  }

  /** Classes with pods of this node. */
  localClasses(): Iterable<PodClass> {
    return this.#assigned.keys();
  }

  /** The set for pods of a class; the caller releases it. undefined: no policy applies. */
  acquire(pods: PodClass, direction: Direction): PolicySet | undefined {
    const policies = this.#applying(pods, direction);
    if (policies.length === 0) return undefined;
    const ids = policies.map(({ id }) => id).sort(compareText);
    const key = [direction, ...ids].join('\n');
    const set = getOrCreate(this.#sets, key, () => {
      this.#lastId += 1;
      const made = { number: this.#lastId, direction, key, policies, uses: 0 };
      this.#dirtySets.add(made);
      for (const stored of policies) {
        stored.sets.add(made);
        stored.rules[direction] ??= this.#rulesOf(stored, direction);
      }
      return made;
    });
    set.uses += 1;
    return set;
  }

  release(set: PolicySet): void {
    set.uses -= 1;
    if (set.uses === 0) this.#dirtySets.add(set);
  }

  /**
   * Assigns sets to classes that were touched, forgets sets that are used no more, and takes the rules of
   * policies that changed.
   * @returns classes that have other sets than before, and sets that came, went, or may have other rules.
   */
  update(): { readonly classes: readonly PodClass[]; readonly sets: readonly PolicySet[] } {
    // First, so that sets that nobody needs after a change of policies are unused by now.
    const classes = [...this.#dirtyClasses].filter((pods) => this.#assign(pods));
    this.#dirtyClasses.clear();
    for (const set of this.#dirtySets) if (set.uses === 0) this.#drop(set);
    for (const stored of this.#changedPolicies) {
      for (const set of stored.sets) this.#dirtySets.add(set);
      for (const direction of DIRECTIONS) {
        const before = stored.rules[direction];
        if (before === undefined) continue;
        // Before the old rules release their lists: lists of both must stay.
        stored.rules[direction] = this.#rulesOf(stored, direction);
        releaseRules(before, this.#lists);
      }
      if (stored.policy === undefined) this.#policies.delete(stored.id);
    }
    this.#changedPolicies.clear();
    const sets = [...this.#dirtySets];
    this.#dirtySets.clear();
    return { classes, sets };
  }

  /** undefined: nothing is judged by it any more. */
  rules({ policies, direction, uses }: PolicySet): PolicySetRules | undefined {
    if (uses === 0) return undefined;
    const inOrder = policies.toSorted((a, b) =>
      byPrecedence(a.policy as Policy, b.policy as Policy),
    );
    const of = (tier: Policy['tier']) => inOrder.filter(({ policy }) => policy?.tier === tier);
    const rulesOf = (some: readonly StoredPolicy[]) =>
      some.flatMap(({ rules }) => rules[direction] ?? []);
    // A set has policies of only one of these tiers.
    const [isolating, baseline] = [of('NetworkPolicy'), of('Baseline')];
    return {
      admin: rulesOf(of('Admin')),
      lowerTiers: rulesOf([...isolating, ...baseline]),
      isolatedBy: isolating.map(({ policy }) => policy as Policy),
    };
  }

  /** @returns whether the pods have other sets than before. */
  #assign(pods: PodClass): boolean {
    const before = this.of(pods);
    if (pods.localCount === 0) this.#assigned.delete(pods);
    else {
      const ingress = this.acquire(pods, 'ingress');
      this.#assigned.set(pods, { ingress, egress: this.acquire(pods, 'egress') });
    }
    const now = this.of(pods);
    for (const set of [before.ingress, before.egress]) if (set !== undefined) this.release(set);
    return now.ingress !== before.ingress || now.egress !== before.egress;
  }

  /** Policies that apply to pods of a class. The Baseline tier does not where a NetworkPolicy does. */
  #applying({ namespace, labels }: PodClass, direction: Direction): StoredPolicy[] {
    const applying: StoredPolicy[] = [];
    for (const stored of this.#bySubject.candidates(namespace.name)) {
      const { policy } = stored;
      if (policy === undefined || !appliesTo(policy, direction)) continue;
      if (selectsPod(policy.subject, namespace, labels)) applying.push(stored);
    }
    const isIsolated = applying.some(({ policy }) => policy?.tier === 'NetworkPolicy');
    return isIsolated ? applying.filter(({ policy }) => policy?.tier !== 'Baseline') : applying;
  }

  #rulesOf({ policy }: StoredPolicy, direction: Direction): readonly PolicySetRule[] {
    return policy === undefined ? [] : acquireRules(policy, direction, this.#lists);
  }

  #drop(set: PolicySet): void {
    const { direction } = set;
    this.#sets.delete(set.key);
    for (const stored of set.policies) {
      stored.sets.delete(set);
      if ([...stored.sets].some((each) => each.direction === direction)) continue;
      releaseRules(stored.rules[direction] ?? [], this.#lists);
      delete stored.rules[direction];
    }
  }

  #replace(stored: StoredPolicy, policy: Policy | undefined): void {
    for (const each of [stored.policy, policy]) {
      if (each === undefined) continue;
      // A change of a policy concerns only pods that it selected before or selects now.
      for (const pods of this.#assigned.keys()) {
        if (selectsPod(each.subject, pods.namespace, pods.labels)) this.#dirtyClasses.add(pods);
      }
    }
    if (stored.policy !== undefined) this.#bySubject.delete(stored, [stored.policy.subject]);
    if (policy !== undefined) this.#bySubject.add(stored, [policy.subject]);
    stored.policy = policy;
    this.#changedPolicies.add(stored);
  }
}

function idOf(kind: PolicyKind, key: ObjectKey): string {
  return `${kind} ${key}`;
}

/** A NetworkPolicy isolates pods even without rules; the others need a rule. */
function appliesTo(policy: Policy, direction: Direction): boolean {
  const rules = policy[direction];
  return rules !== undefined && (policy.tier === 'NetworkPolicy' || rules.length > 0);
}

/** The order of a tier. Upstream leaves it open among equals of priority, and among kinds. */
function byPrecedence(a: Policy, b: Policy): number {
  return (
    priorityOf(a) - priorityOf(b) || compareText(a.name, b.name) || compareText(a.kind, b.kind)
  );
}

/** A BaselineAdminNetworkPolicy has none and goes first. */
function priorityOf({ kind, priority }: Policy): number {
  return kind === 'BaselineAdminNetworkPolicy' ? -1 : priority;
}
