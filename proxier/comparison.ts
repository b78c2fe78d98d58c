/** Collects compared objects for `Backend.compare`, and compares lists of rules. */
import type { ObjectKey } from '../api/objects.ts';
import type { ComparedObject, ComparedState, Comparison } from './compared-object.ts';

/** Objects that a comparison returns at most: of 10,000 Services, a flushed table lacks 100,000. */
export const MAX_COMPARED_OBJECTS = 10_000;

/** Collects the objects of one comparison. */
export class ComparisonBuilder {
  /** Only objects of this Service are compared; undefined: all objects. */
  readonly service: ObjectKey | undefined;
  #compared = 0;
  #omitted = 0;
  readonly #objects: ComparedObject[] = [];

  constructor(service: ObjectKey | undefined) {
    this.service = service;
  }

  /**
   * Adds an object.
   * @param describe called only if the result is to contain the object, because texts of 100,000
   * elements are expensive.
   */
  add(state: ComparedState, describe: () => Omit<ComparedObject, 'state'>): void {
    this.#compared += 1;
    if (state === 'ok' && this.service === undefined) return;
    if (this.#objects.length >= MAX_COMPARED_OBJECTS) this.#omitted += 1;
    else this.#objects.push({ ...describe(), state });
  }

  /** Counts objects that are as they should be, in a comparison of all Services. */
  addUnchanged(count: number): void {
    this.#compared += count;
  }

  result(): Comparison {
    const omitted = this.#omitted === 0 ? {} : { omitted: this.#omitted };
    return { compared: this.#compared, objects: this.#objects, ...omitted };
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
