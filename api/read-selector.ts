/** Labels, and selectors of labels in one sorted form. */
import { compareText } from './collections.ts';
import type { Labels, Requirement, Selector } from './policy-objects.ts';
import {
  child,
  type Field,
  fail,
  isMissing,
  items,
  members,
  record,
  shown,
  text,
  word,
} from './read-field.ts';
import { isDnsSubdomain } from './read-name.ts';
import { shared } from './shared-text.ts';

const OPERATORS: readonly Requirement['operator'][] = ['In', 'NotIn', 'Exists', 'DoesNotExist'];
const KEY_NAME = /^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$/;
const VALUE = /^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$/;

/** `metadata.labels`. What they may be is not checked: they are only compared. */
export function readLabels(metadata: Field): Labels {
  return readTexts(child(metadata, 'labels'));
}

/**
 * A metav1.LabelSelector, held against the rules of Kubernetes' ValidateLabelSelector. One that is
 * missing or empty selects everything; whether it may be missing is for the caller to say.
 */
export function readSelector(field: Field): Selector {
  members(field, ['matchLabels', 'matchExpressions']);
  const matchLabels = child(field, 'matchLabels');
  const requirements = [
    ...Object.keys(readTexts(matchLabels)).map((key) => {
      const value = child(matchLabels, key);
      return requirement(labelKey(value, key), 'In', [labelValue(value)]);
    }),
    ...items(child(field, 'matchExpressions')).map(readRequirement),
  ];
  requirements.sort(compareRequirements);
  return requirements.filter((each, index) => {
    const before = requirements[index - 1];
    return before === undefined || compareRequirements(before, each) !== 0;
  });
}

/** A selector that has to be written, be it empty. */
export function requiredSelector(field: Field): Selector {
  if (isMissing(field)) fail(field, 'is required');
  return readSelector(field);
}

function readRequirement(field: Field): Requirement {
  members(field, ['key', 'operator', 'values']);
  const key = child(field, 'key');
  const operator = word(child(field, 'operator'), OPERATORS);
  const list = child(field, 'values');
  const values = items(list).map(labelValue);
  const takesValues = operator === 'In' || operator === 'NotIn';
  if (takesValues && values.length === 0) fail(list, `must have a value for ${operator}`);
  if (!takesValues && values.length > 0) fail(list, `must be empty for ${operator}`);
  return requirement(labelKey(key, text(key)), operator, values);
}

function requirement(
  key: string,
  operator: Requirement['operator'],
  values: readonly string[],
): Requirement {
  return { key, operator, values: [...new Set(values)].sort(compareText) };
}

function compareRequirements(a: Requirement, b: Requirement): number {
  return (
    compareText(a.key, b.key) ||
    compareText(a.operator, b.operator) ||
    compareText(a.values.join(), b.values.join())
  );
}

/** A qualified name: `app`, `example.com/app`. */
function labelKey(field: Field, key: string): string {
  const [name = '', prefix, ...rest] = key.split('/').reverse();
  const isPrefix = prefix === undefined || isDnsSubdomain(prefix);
  if (!KEY_NAME.test(name) || !isPrefix || rest.length > 0) {
    fail(field, `must be for a label such as example.com/app, not ${shown(key)}`);
  }
  return key;
}

function labelValue(field: Field): string {
  const value = text(field);
  if (!VALUE.test(value)) fail(field, `must be the value of a label, not ${shown(value)}`);
  return value;
}

function readTexts(field: Field): Labels {
  if (isMissing(field)) return {};
  const texts = Object.keys(record(field)).map((key) => [key, shared(text(child(field, key)))]);
  return Object.fromEntries(texts) as Labels;
}
