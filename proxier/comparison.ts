/** Collects compared objects for `Backend.compare`, and compares lists of rules. */
import type { ObjectKey } from '../api/objects.ts';
import type { ComparedObject, ComparedState, Comparison, SyncSpan } from './compared-object.ts';

/**
 * Differences that a comparison describes at most, and objects that are as they should be: of 10,000 Services, a
 * flushed table lacks 100,000 objects.
 */
export const MAX_COMPARED_OBJECTS = 1000;

/** Collects the objects of one comparison. */
export class ComparisonBuilder {
  /** Only objects of this Service are compared; undefined: all objects. */
  readonly service: ObjectKey | undefined;
  /** Aborted when the last client of the comparison has gone. */
  readonly signal: AbortSignal | undefined;
  readonly #namespace: string | undefined;
  #compared = 0;
  #different = 0;
  readonly #differences: ComparedObject[] = [];
  readonly #unchanged: ComparedObject[] = [];

  /**
   * @param signal ends the comparison: `add` and `addUnchanged` then throw the reason.
   * @param namespace see `Backend.compare`.
   */
  constructor(service: ObjectKey | undefined, signal?: AbortSignal, namespace?: string) {
    this.#namespace = namespace;
    this.service = service;
    this.signal = signal;
  }

  /**
   * Adds an object.
   * @param describe called only if the result may contain the object, because texts of 100,000
   * elements are expensive.
   * @throws the reason of the signal.
   */
  add(state: ComparedState, describe: () => Omit<ComparedObject, 'state'>): void {
    this.addUnchanged(1);
    const isDifferent = state !== 'ok';
    if (!isDifferent && this.service === undefined) return;
    const namespace = this.#namespace;
    const described = namespace === undefined ? undefined : describe();
    // An object of no Service, such as a base chain, serves all namespaces.
    const isElsewhere =
      described !== undefined && described.service?.startsWith(`${namespace}/`) === false;
    if (isElsewhere) return;
    if (isDifferent) this.#different += 1;
    const objects = isDifferent ? this.#differences : this.#unchanged;
    if (objects.length < MAX_COMPARED_OBJECTS)
      objects.push({ ...(described ?? describe()), state });
  }

  /** Counts objects that are as they should be, in a comparison of all Services. @throws the reason of the signal. */
  addUnchanged(count: number): void {
    this.signal?.throwIfAborted();
    this.#compared += count;
  }

  /** @param syncs the syncs that ran meanwhile. Default: none. */
  result(syncs: SyncSpan = { ended: 0, begun: 0 }): Comparison {
    const objects = [...this.#differences, ...this.#unchanged];
    return { compared: this.#compared, different: this.#different, objects, syncs };
  }
}

/** A rule: what identifies it in comparisons, and its text for people. */
export interface ComparedRule {
  readonly id: string;
  readonly text: string;
}

/** One rule that a chain has or should have. */
export interface RuleDifference<Rule extends ComparedRule> {
  readonly state: ComparedState;
  readonly desired: Rule | undefined;
  readonly actual: Rule | undefined;
}

/**
 * Compares the rules of one chain. A missing and an unexpected rule form a pair: a changed rule. If
 * only the order differs, the rules at other positions are changed; the order is not compared while
 * rules are missing or unexpected.
 */
export function compareRules<Rule extends ComparedRule>(
  desired: readonly Rule[],
  actual: readonly Rule[],
): RuleDifference<Rule>[] {
  const unexpected = withoutCommon(actual, desired);
  const missing = new Set(withoutCommon(desired, actual));
  if (missing.size === 0 && unexpected.length === 0) {
    return desired.map((rule, index) => {
      const found = actual[index];
      return { state: found?.id === rule.id ? 'ok' : 'changed', desired: rule, actual: found };
    });
  }
  const differences = desired.map((rule): RuleDifference<Rule> => {
    if (!missing.has(rule)) return { state: 'ok', desired: rule, actual: rule };
    const found = unexpected.shift();
    return { state: found === undefined ? 'missing' : 'changed', desired: rule, actual: found };
  });
  for (const rule of unexpected) {
    differences.push({ state: 'unexpected', desired: undefined, actual: rule });
  }
  return differences;
}

/** The rules of a list that another list does not have, or has less often. */
function withoutCommon<Rule extends ComparedRule>(
  rules: readonly Rule[],
  others: readonly Rule[],
): Rule[] {
  const counts = new Map<string, number>();
  for (const { id } of others) counts.set(id, (counts.get(id) ?? 0) + 1);
  return rules.filter(({ id }) => {
    const count = counts.get(id) ?? 0;
    counts.set(id, count - 1);
    return count <= 0;
  });
}
