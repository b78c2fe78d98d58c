/** Label selectors (metav1.LabelSelector), and what they select. */
import type { Labels, PodSelection, Requirement, Selector } from '../../api/policy-objects.ts';

/** A namespace as selectors see it. */
export interface SelectableNamespace {
  readonly name: string;
  readonly labels: Labels;
}

/** Whether all requirements hold (metav1.LabelSelector). */
export function matches(selector: Selector, labels: Labels): boolean {
  return selector.every((requirement) => holds(requirement, labels));
}

/** Whether a selection has pods with these labels in this namespace. */
export function selects(
  { namespaces, pods }: PodSelection,
  namespace: SelectableNamespace,
  labels: Labels,
): boolean {
  return reaches(namespaces, namespace) && matches(pods, labels);
}

/** Whether a selection has, or might have, pods in this namespace. */
export function reaches(
  namespaces: PodSelection['namespaces'],
  namespace: SelectableNamespace,
): boolean {
  return typeof namespaces === 'string'
    ? namespaces === namespace.name
    : matches(namespaces, namespace.labels);
}

function holds({ key, operator, values }: Requirement, labels: Labels): boolean {
  // Labels are parsed JSON: `labels.constructor` is there without anybody having set it.
  const value = Object.hasOwn(labels, key) ? labels[key] : undefined;
  switch (operator) {
    case 'In':
      return value !== undefined && values.includes(value);
    case 'NotIn':
      return value === undefined || !values.includes(value);
    case 'Exists':
      return value !== undefined;
    case 'DoesNotExist':
      return value === undefined;
  }
}
