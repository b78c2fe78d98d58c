/** Label selectors (metav1.LabelSelector), and what they select. */
import type {
  LabelSelector,
  Labels,
  PodSelection,
  SelectorRequirement,
} from '../../api/policy-objects.ts';

/** A namespace as selectors see it. */
export interface SelectableNamespace {
  readonly name: string;
  readonly labels: Labels;
}

/** Whether all requirements hold (metav1.LabelSelector). */
export function matches(selector: LabelSelector, labels: Labels): boolean {
  return selector.every((requirement) => meetsRequirement(requirement, labels));
}

/** Whether a selection has pods with these labels in this namespace. */
export function selectsPod(
  { namespaces, pods }: PodSelection,
  namespace: SelectableNamespace,
  labels: Labels,
): boolean {
  return selectsNamespace(namespaces, namespace) && matches(pods, labels);
}

/** Whether a selection has, or might have, pods in this namespace. */
export function selectsNamespace(
  namespaces: PodSelection['namespaces'],
  namespace: SelectableNamespace,
): boolean {
  return typeof namespaces === 'string'
    ? namespaces === namespace.name
    : matches(namespaces, namespace.labels);
}

function meetsRequirement({ key, operator, values }: SelectorRequirement, labels: Labels): boolean {
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
