/** Evaluates label selectors (metav1.LabelSelector). */
import type {
  LabelSelector,
  Labels,
  PodSelection,
  SelectorRequirement,
} from '../../api/policy-objects.ts';

/** The fields of a namespace that selectors need. */
export interface SelectableNamespace {
  readonly name: string;
  readonly labels: Labels;
}

/** Whether labels match all requirements of a selector. */
export function matches(selector: LabelSelector, labels: Labels): boolean {
  return selector.every((requirement) => meetsRequirement(requirement, labels));
}

/** Whether a selection contains pods with these labels in this namespace. */
export function selectsPod(
  { namespaces, pods }: PodSelection,
  namespace: SelectableNamespace,
  labels: Labels,
): boolean {
  return selectsNamespace(namespaces, namespace) && matches(pods, labels);
}

/**
 * Whether a selection includes this namespace. Whether it selects a pod there depends on the pod's
 * labels.
 */
export function selectsNamespace(
  namespaces: PodSelection['namespaces'],
  namespace: SelectableNamespace,
): boolean {
  return typeof namespaces === 'string'
    ? namespaces === namespace.name
    : matches(namespaces, namespace.labels);
}

function meetsRequirement({ key, operator, values }: SelectorRequirement, labels: Labels): boolean {
  // Labels are a parsed JSON object, which inherits properties such as `constructor`.
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
