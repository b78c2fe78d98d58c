/** All policies, and the policy sets that apply to pods of this node. */
import { compareText, getOrCreate } from '../../api/collections.ts';
import type { ObjectKey } from '../../api/objects.ts';
import type { Policy, PolicyKind } from '../../api/policy-objects.ts';
import { NamespaceIndex } from './namespace-index.ts';
import type { PodClass } from './pods.ts';
import type { RuleLists } from './rule-lists.ts';
import { acquireRules, type PolicySetRule, releaseRules } from './rules.ts';
import { selectsPod } from './selectors.ts';
import { DIRECTIONS, type Direction } from './terms.ts';

/**
 * The policies that apply to a pod in one direction. Pods with the same policies share a policy
 * set.
 */
export interface PolicySet {
  /** Never reused while the agent runs. */
  readonly id: number;
  readonly direction: Direction;
  readonly key: string;
  readonly policies: readonly StoredPolicy[];
  refCount: number;
  /** Whether a rule has domain names, as of the last `update()`. */
  usesNames: boolean;
}

interface StoredPolicy {
  readonly id: string;
  /** undefined: the policy was deleted; `update()` drops the sets that contain it. */
  policy: Policy | undefined;
  readonly sets: Set<PolicySet>;
  /** Rules by direction, for each direction in which a policy set contains the policy. */
  readonly rules: Partial<Record<Direction, readonly PolicySetRule[]>>;
}

/** The rules of a policy set in order of evaluation. */
export interface PolicySetRules {
  /**
   * Rules of the Admin tier. A connection that a rule passes, or that no rule matches, continues
   * with `lowerTiers`.
   */
  readonly admin: readonly PolicySetRule[];
  /** Rules of NetworkPolicies, or of the Baseline tier if no NetworkPolicy isolates the pod. */
  readonly lowerTiers: readonly PolicySetRule[];
  /**
   * NetworkPolicies that isolate the pod. If there is at least one, a connection that no rule
   * matches is denied.
   */
  readonly isolatedBy: readonly Policy[];
}

type Assignment = Readonly<Record<Direction, PolicySet | undefined>>;

const NO_POLICIES: Assignment = { ingress: undefined, egress: undefined };

export class PolicySets {
  readonly #lists: RuleLists;
  readonly #policies = new Map<string, StoredPolicy>();
  readonly #bySubject = new NamespaceIndex<StoredPolicy>();
  readonly #sets = new Map<string, PolicySet>();
  /** Policy sets of each class with pods on this node. */
  readonly #assigned = new Map<PodClass, Assignment>();
  /** Classes whose policy sets may have changed. */
  readonly #dirtyClasses = new Set<PodClass>();
  readonly #changedPolicies = new Set<StoredPolicy>();
  readonly #dirtySets = new Set<PolicySet>();
  #lastId = 0;

  constructor(lists: RuleLists) {
    this.#lists = lists;
  }

  upsert(policy: Policy): void {
    const id = idOf(policy.kind, policy.key);
    const empty = () => ({ id, policy: undefined, sets: new Set<PolicySet>(), rules: {} });
    this.#replace(getOrCreate<string, StoredPolicy>(this.#policies, id, empty), policy);
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

  /** The policies that apply to a class of pods on this node, by direction. */
  policiesOf(podClass: PodClass, direction: Direction): readonly Policy[] {
    const set = this.assignmentOf(podClass)[direction];
    return (set?.policies ?? []).flatMap(({ policy }) => policy ?? []);
  }

  /** Makes the next `update()` assign policy sets to a class again. */
  markDirty(podClass: PodClass): void {
    this.#dirtyClasses.add(podClass);
  }

  /** The policy sets that apply to pods of a class on this node. */
  assignmentOf(podClass: PodClass): Assignment {
    return this.#assigned.get(podClass) ?? NO_POLICIES;
  }

  /** Classes with pods on this node. */
  localClasses(): Iterable<PodClass> {
    return this.#assigned.keys();
  }

  /**
   * The policy set for pods of a class, on this or another node; undefined if no policy applies.
   * The caller must release the policy set.
   */
  acquire(podClass: PodClass, direction: Direction): PolicySet | undefined {
    const policies = this.#applying(podClass, direction);
    if (policies.length === 0) return undefined;
    const ids = policies.map(({ id }) => id).sort(compareText);
    const key = [direction, ...ids].join('\n');
    const set = getOrCreate(this.#sets, key, () => {
      this.#lastId += 1;
      const id = this.#lastId;
      const created = { id, direction, key, policies, refCount: 0, usesNames: false };
      this.#dirtySets.add(created);
      for (const stored of policies) {
        stored.sets.add(created);
        stored.rules[direction] ??= this.#rulesOf(stored, direction);
      }
      return created;
    });
    set.refCount += 1;
    return set;
  }

  release(set: PolicySet): void {
    set.refCount -= 1;
    if (set.refCount === 0) this.#dirtySets.add(set);
  }

  /**
   * Assigns policy sets to dirty classes, drops unused policy sets and updates the rules of changed
   * policies.
   * @returns classes with changed assignments or a changed use of domain names, and policy sets that were added, dropped or may have
   * changed rules.
   */
  update(): { readonly classes: readonly PodClass[]; readonly sets: readonly PolicySet[] } {
    // Assign first, so that policy sets that are no longer needed have no references afterwards.
    const classes = new Set([...this.#dirtyClasses].filter((podClass) => this.#assign(podClass)));
    this.#dirtyClasses.clear();
    for (const set of this.#dirtySets) if (set.refCount === 0) this.#drop(set);
    for (const stored of this.#changedPolicies) {
      for (const set of stored.sets) this.#dirtySets.add(set);
      for (const direction of DIRECTIONS) {
        const before = stored.rules[direction];
        if (before === undefined) continue;
        // Acquire the new rules before releasing the old rules, so that the reference count of a
        // list in both does not become 0.
        stored.rules[direction] = this.#rulesOf(stored, direction);
        releaseRules(before, this.#lists);
      }
      if (stored.policy === undefined) this.#policies.delete(stored.id);
    }
    this.#changedPolicies.clear();
    const sets = [...this.#dirtySets];
    this.#dirtySets.clear();
    const toggled = new Set(sets.filter(updateUsesNames));
    for (const [podClass, { egress }] of toggled.size > 0 ? this.#assigned : []) {
      if (egress !== undefined && toggled.has(egress)) classes.add(podClass);
    }
    return { classes: [...classes], sets };
  }

  /** The rules of a policy set; undefined if nothing refers to the set. */
  rules({ policies, direction, refCount }: PolicySet): PolicySetRules | undefined {
    if (refCount === 0) return undefined;
    const inOrder = policies.toSorted((a, b) =>
      byPrecedence(a.policy as Policy, b.policy as Policy),
    );
    const of = (tier: Policy['tier']) => inOrder.filter(({ policy }) => policy?.tier === tier);
    const rulesOf = (some: readonly StoredPolicy[]) =>
      some.flatMap(({ rules }) => rules[direction] ?? []);
    // A policy set never contains both NetworkPolicies and policies of the Baseline tier
    // (`#applying`).
    const [isolating, baseline] = [of('NetworkPolicy'), of('Baseline')];
    return {
      admin: rulesOf(of('Admin')),
      lowerTiers: rulesOf([...isolating, ...baseline]),
      isolatedBy: isolating.map(({ policy }) => policy as Policy),
    };
  }

  /** @returns whether the assignment changed. */
  #assign(podClass: PodClass): boolean {
    const before = this.assignmentOf(podClass);
    if (podClass.localCount === 0) this.#assigned.delete(podClass);
    else {
      const ingress = this.acquire(podClass, 'ingress');
      this.#assigned.set(podClass, { ingress, egress: this.acquire(podClass, 'egress') });
    }
    const now = this.assignmentOf(podClass);
    for (const set of [before.ingress, before.egress]) if (set !== undefined) this.release(set);
    return now.ingress !== before.ingress || now.egress !== before.egress;
  }

  /**
   * Policies that apply to pods of a class. If a NetworkPolicy applies in this direction, policies
   * of the Baseline tier do not.
   */
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
      // A change affects only pods that the policy selected before or selects now.
      for (const podClass of this.#assigned.keys()) {
        if (selectsPod(each.subject, podClass.namespace, podClass.labels))
          this.#dirtyClasses.add(podClass);
      }
    }
    if (stored.policy !== undefined) this.#bySubject.delete(stored, [stored.policy.subject]);
    if (policy !== undefined) this.#bySubject.add(stored, [policy.subject]);
    stored.policy = policy;
    this.#changedPolicies.add(stored);
  }
}

/** @returns whether `usesNames` changed. */
function updateUsesNames(set: PolicySet): boolean {
  const before = set.usesNames;
  set.usesNames = set.policies.some(({ rules }) =>
    rules[set.direction]?.some(({ peers }) => peers !== undefined && peers.domainNames.length > 0),
  );
  return set.usesNames !== before;
}

function idOf(kind: PolicyKind, key: ObjectKey): string {
  return `${kind} ${key}`;
}

/** Whether a policy applies in a direction. A NetworkPolicy isolates pods even without rules. */
function appliesTo(policy: Policy, direction: Direction): boolean {
  const rules = policy[direction];
  return rules !== undefined && (policy.tier === 'NetworkPolicy' || rules.length > 0);
}

/**
 * Order within a tier. The API does not define an order for equal priorities or between kinds: use
 * the name, then the kind.
 */
function byPrecedence(a: Policy, b: Policy): number {
  return (
    priorityOf(a) - priorityOf(b) || compareText(a.name, b.name) || compareText(a.kind, b.kind)
  );
}

/** A BaselineAdminNetworkPolicy has no priority and is evaluated first in the Baseline tier. */
function priorityOf({ kind, priority }: Policy): number {
  return kind === 'BaselineAdminNetworkPolicy' ? -1 : priority;
}
