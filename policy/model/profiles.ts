import { compareText, getOrCreate } from '../../api/collections.ts';
import type { ObjectKey } from '../../api/objects.ts';
import type { Policy, PolicyKind } from '../../api/policy-objects.ts';
import type { Lists } from './lists.ts';
import type { NamespaceState, Shape } from './pods.ts';
import { type CompiledRule, compileRules, releaseRules } from './rules.ts';
import { selects } from './selectors.ts';
import { type ChainRule, DIRECTIONS, type Direction, type ProfileChain } from './shape.ts';

/** Policies that together apply to a pod in one direction. */
export interface Profile {
  readonly number: number;
  readonly direction: Direction;
  readonly key: string;
  readonly policies: readonly PolicyState[];
  uses: number;
}

interface PolicyState {
  readonly id: string;
  /** undefined: it is gone, and profiles that it was in are about to go. */
  policy: Policy | undefined;
  readonly profiles: Set<Profile>;
  /** Of directions in which a profile has it. */
  readonly rules: Partial<Record<Direction, readonly CompiledRule[]>>;
}

/** The rules of a profile, in the order in which they are judged. */
export interface ProfileRules {
  readonly admin: readonly CompiledRule[];
  readonly rest: readonly CompiledRule[];
  /** NetworkPolicies, if there are: what nothing in `rest` matches is denied. */
  readonly isolatedBy: readonly Policy[];
}

const ISOLATED: ChainRule = {
  peers: undefined,
  ports: undefined,
  outcome: 'deny-network-policy',
  comment: 'isolated by NetworkPolicy',
};

/** All policies, and the profiles that pods of this node have by them. */
export class Profiles {
  readonly #lists: Lists;
  readonly #policies = new Map<string, PolicyState>();
  /** Policies by the namespace that they are about. */
  readonly #inNamespace = new Map<string, Set<PolicyState>>();
  /** Those that are about namespaces they select. */
  readonly #across = new Set<PolicyState>();
  readonly #profiles = new Map<string, Profile>();
  readonly #stale = new Set<PolicyState>();
  readonly #touched = new Set<Profile>();
  #last = 0;

  constructor(lists: Lists) {
    this.#lists = lists;
  }

  /** @returns the policy as it was. */
  upsert(policy: Policy): Policy | undefined {
    const id = idOf(policy.kind, policy.key);
    const state = getOrCreate(this.#policies, id, () => newState(id));
    return this.#replace(state, policy);
  }

  /** @returns the policy as it was. */
  remove(kind: PolicyKind, key: ObjectKey): Policy | undefined {
    const state = this.#policies.get(idOf(kind, key));
    return state && this.#replace(state, undefined);
  }

  /** The profile of pods of a shape, to be released; undefined where nothing applies to them. */
  acquire(shape: Shape, direction: Direction): Profile | undefined {
    const policies = this.#applying(shape, direction);
    if (policies.length === 0) return undefined;
    const ids = policies.map(({ id }) => id).sort(compareText);
    const key = [direction, ...ids].join('\n');
    const profile = getOrCreate(this.#profiles, key, () => {
      this.#last += 1;
      const made = { number: this.#last, direction, key, policies, uses: 0 };
      this.#touched.add(made);
      for (const state of policies) {
        state.profiles.add(made);
        state.rules[direction] ??= this.#compile(state, direction);
      }
      return made;
    });
    profile.uses += 1;
    return profile;
  }

  release(profile: Profile): void {
    profile.uses -= 1;
    if (profile.uses === 0) this.#touched.add(profile);
  }

  /**
   * Forgets profiles that are used no more, and compiles policies that changed. Before, all shapes
   * that a changed policy selects or selected have to have got their profiles.
   * @returns profiles that came, went, or may have other rules than before.
   */
  settle(): readonly Profile[] {
    for (const profile of this.#touched) if (profile.uses === 0) this.#drop(profile);
    for (const state of this.#stale) {
      for (const profile of state.profiles) this.#touched.add(profile);
      for (const direction of DIRECTIONS) {
        const before = state.rules[direction];
        if (before === undefined) continue;
        // Before the old ones go: what both name stays.
        state.rules[direction] = this.#compile(state, direction);
        releaseRules(before, this.#lists);
      }
      if (state.policy === undefined) this.#policies.delete(state.id);
    }
    this.#stale.clear();
    const touched = [...this.#touched];
    this.#touched.clear();
    return touched;
  }

  rules({ policies, direction }: Profile): ProfileRules {
    const states = policies.toSorted((a, b) => inOrder(a.policy as Policy, b.policy as Policy));
    const of = (tier: Policy['tier']) => states.filter(({ policy }) => policy?.tier === tier);
    const rulesOf = (some: readonly PolicyState[]) =>
      some.flatMap(({ rules }) => rules[direction] ?? []);
    // There is something of one of these only.
    const [isolating, baseline] = [of('NetworkPolicy'), of('Baseline')];
    return {
      admin: rulesOf(of('Admin')),
      rest: rulesOf([...isolating, ...baseline]),
      isolatedBy: isolating.map(({ policy }) => policy as Policy),
    };
  }

  /** undefined: nothing is judged by it any more. */
  chain(profile: Profile): ProfileChain | undefined {
    if (profile.uses === 0) return undefined;
    const { admin, rest, isolatedBy } = this.rules(profile);
    return {
      direction: profile.direction,
      profile: profile.number,
      admin: admin.map(({ rule }) => rule),
      rest: [...rest.map(({ rule }) => rule), ...(isolatedBy.length > 0 ? [ISOLATED] : [])],
    };
  }

  /** What has a say on pods of a shape: behind NetworkPolicies, nobody asks the Baseline tier. */
  #applying({ namespace, labels }: Shape, direction: Direction): PolicyState[] {
    const applying: PolicyState[] = [];
    for (const state of this.#candidates(namespace)) {
      const { policy } = state;
      if (policy === undefined || !speaksOf(policy, direction)) continue;
      if (selects(policy.subject, namespace, labels)) applying.push(state);
    }
    const isIsolated = applying.some(({ policy }) => policy?.tier === 'NetworkPolicy');
    return isIsolated ? applying.filter(({ policy }) => policy?.tier !== 'Baseline') : applying;
  }

  *#candidates({ name }: NamespaceState): Iterable<PolicyState> {
    yield* this.#inNamespace.get(name) ?? [];
    yield* this.#across;
  }

  #compile({ policy }: PolicyState, direction: Direction): readonly CompiledRule[] {
    return policy === undefined ? [] : compileRules(policy, direction, this.#lists);
  }

  #drop(profile: Profile): void {
    this.#profiles.delete(profile.key);
    for (const state of profile.policies) {
      state.profiles.delete(profile);
      const isUsed = [...state.profiles].some(({ direction }) => direction === profile.direction);
      if (isUsed) continue;
      releaseRules(state.rules[profile.direction] ?? [], this.#lists);
      delete state.rules[profile.direction];
    }
  }

  #replace(state: PolicyState, policy: Policy | undefined): Policy | undefined {
    const before = state.policy;
    this.#index(state, false);
    state.policy = policy;
    this.#index(state, true);
    this.#stale.add(state);
    return before;
  }

  #index(state: PolicyState, isThere: boolean): void {
    if (state.policy === undefined) return;
    const { namespaces } = state.policy.subject;
    const isNamed = typeof namespaces === 'string';
    const states = isNamed
      ? getOrCreate(this.#inNamespace, namespaces, () => new Set())
      : this.#across;
    if (isThere) states.add(state);
    else states.delete(state);
    if (isNamed && states.size === 0) this.#inNamespace.delete(namespaces);
  }
}

function newState(id: string): PolicyState {
  return { id, policy: undefined, profiles: new Set(), rules: {} };
}

function idOf(kind: PolicyKind, key: ObjectKey): string {
  return `${kind} ${key}`;
}

/** A NetworkPolicy isolates by being there, the others say what their rules say. */
function speaksOf(policy: Policy, direction: Direction): boolean {
  const rules = policy[direction];
  return rules !== undefined && (policy.tier === 'NetworkPolicy' || rules.length > 0);
}

/** The order of a tier. Upstream leaves it open among equals of priority, and among kinds. */
function inOrder(a: Policy, b: Policy): number {
  return (
    priorityOf(a) - priorityOf(b) || compareText(a.name, b.name) || compareText(a.kind, b.kind)
  );
}

/** A BaselineAdminNetworkPolicy has none and goes first. */
function priorityOf({ kind, priority }: Policy): number {
  return kind === 'BaselineAdminNetworkPolicy' ? -1 : priority;
}
