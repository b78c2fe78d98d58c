/**
 * Finds the policies or lists that may select pods of a namespace, without scanning all of them.
 */
import { getOrCreate } from '../../api/collections.ts';
import type { PodSelection } from '../../api/policy-objects.ts';

export class NamespaceIndex<T> {
  readonly #byName = new Map<string, Set<T>>();
  /** Items that select namespaces by label. */
  readonly #byLabels = new Set<T>();

  add(item: T, selections: readonly PodSelection[]): void {
    const names = namespaceNames(selections);
    if (names === undefined) this.#byLabels.add(item);
    else for (const name of names) getOrCreate(this.#byName, name, () => new Set()).add(item);
  }

  /** @param selections The selections that were passed to `add`. */
  delete(item: T, selections: readonly PodSelection[]): void {
    this.#byLabels.delete(item);
    for (const name of namespaceNames(selections) ?? []) {
      const items = this.#byName.get(name);
      items?.delete(item);
      if (items?.size === 0) this.#byName.delete(name);
    }
  }

  /** Items that name the namespace, and all items that select namespaces by label. */
  *candidates(namespace: string): Iterable<T> {
    yield* this.#byName.get(namespace) ?? [];
    yield* this.#byLabels;
  }
}

/** Names of the selected namespaces; undefined if a selection selects namespaces by label. */
function namespaceNames(selections: readonly PodSelection[]): readonly string[] | undefined {
  const names = selections.map(({ namespaces }) => namespaces);
  return names.every((each) => typeof each === 'string') ? names : undefined;
}
