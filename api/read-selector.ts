/** Reads labels and label selectors; selectors become sorted lists of requirements. */
import { compareText } from './collections.ts';
import { intern } from './intern.ts';
import type { LabelSelector, Labels, SelectorRequirement } from './policy-objects.ts';
import {
  child,
  describeValue,
  fail,
  isMissing,
  knownFields,
  type ObjectField,
  readEnum,
  readList,
  readMap,
  readString,
} from './read-field.ts';
import { isDnsSubdomain } from './read-name.ts';

const OPERATORS: readonly SelectorRequirement['operator'][] = [
  'In',
  'NotIn',
  'Exists',
  'DoesNotExist',
];
const KEY_NAME = /^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$/;
const VALUE = /^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$/;

/** Reads `metadata.labels`. Does not check the syntax of values, which are only compared. */
export function readLabels(metadata: ObjectField): Labels {
  return readTexts(child(metadata, 'labels'));
}

/**
 * Reads a metav1.LabelSelector with the rules of Kubernetes' ValidateLabelSelector. A missing or
 * empty selector selects everything; the caller decides whether the selector may be missing.
 * @throws InvalidObject
 */
export function readSelector(field: ObjectField): LabelSelector {
  knownFields(field, ['matchLabels', 'matchExpressions']);
  const matchLabels = child(field, 'matchLabels');
  const requirements = [
    ...Object.keys(readTexts(matchLabels)).map((key) => {
      const value = child(matchLabels, key);
      return requirement(labelKey(value, key), 'In', [labelValue(value)]);
    }),
    ...readList(child(field, 'matchExpressions')).map(readRequirement),
  ];
  requirements.sort(compareRequirements);
  return requirements.filter((each, index) => {
    const before = requirements[index - 1];
    return before === undefined || compareRequirements(before, each) !== 0;
  });
}

/** Reads a selector that must be present, but may be empty. */
export function readRequiredSelector(field: ObjectField): LabelSelector {
  if (isMissing(field)) fail(field, 'is required');
  return readSelector(field);
}

function readRequirement(field: ObjectField): SelectorRequirement {
  knownFields(field, ['key', 'operator', 'values']);
  const key = child(field, 'key');
  const operator = readEnum(child(field, 'operator'), OPERATORS);
  const list = child(field, 'values');
  const values = readList(list).map(labelValue);
  const takesValues = operator === 'In' || operator === 'NotIn';
  if (takesValues && values.length === 0)
    fail(list, `must have at least one value for operator ${operator}`);
  if (!takesValues && values.length > 0) fail(list, `must be empty for operator ${operator}`);
  return requirement(labelKey(key, readString(key)), operator, values);
}

function requirement(
  key: string,
  operator: SelectorRequirement['operator'],
  values: readonly string[],
): SelectorRequirement {
  return { key, operator, values: [...new Set(values)].sort(compareText) };
}

function compareRequirements(a: SelectorRequirement, b: SelectorRequirement): number {
  return (
    compareText(a.key, b.key) ||
    compareText(a.operator, b.operator) ||
    compareText(a.values.join(), b.values.join())
  );
}

/** @returns the key if it is a qualified name such as `app` or `example.com/app`. */
function labelKey(field: ObjectField, key: string): string {
  const [name = '', prefix, ...rest] = key.split('/').reverse();
  const isPrefixValid = prefix === undefined || isDnsSubdomain(prefix);
  if (!KEY_NAME.test(name) || !isPrefixValid || rest.length > 0) {
    fail(field, `must be a label key such as example.com/app, not ${describeValue(key)}`);
  }
  return key;
}

function labelValue(field: ObjectField): string {
  const value = readString(field);
  if (!VALUE.test(value)) fail(field, `must be a label value, not ${describeValue(value)}`);
  return value;
}

/** Reads a map of texts, such as labels or the selector of a Service. */
export function readTexts(field: ObjectField): Labels {
  if (isMissing(field)) return {};
  const texts = Object.keys(readMap(field)).map((key) => [
    key,
    intern(readString(child(field, key))),
  ]);
  return Object.fromEntries(texts) as Labels;
}
