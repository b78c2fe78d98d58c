import type { Manifest } from '../e2e/manifests.ts';
import { metadataOf } from './store.ts';

export type ObjectFilter = (object: Manifest) => boolean;

/** A selector that the double does not support. Neither the agent nor kube-proxy uses one. */
export class UnknownSelector extends Error {
  override readonly name = 'UnknownSelector';
}

/**
 * Supports `labelSelector` with `key`, `!key`, `key=value` and `key!=value`, and `fieldSelector`
 * with `metadata.name`, `spec.clusterIP` or `status.phase`, `=` and `!=`.
 * @throws UnknownSelector for all others.
 */
export function selectorOf(query: Readonly<Record<string, string>>): ObjectFilter {
  const terms = [
    ...split(query.labelSelector).map(labelTerm),
    ...split(query.fieldSelector).map(fieldTerm),
  ];
  return (object) => terms.every((term) => term(object));
}

function split(selector: string | undefined): string[] {
  return selector === undefined || selector === '' ? [] : selector.split(',');
}

function labelTerm(text: string): ObjectFilter {
  const [, not, key = '', operator, value] =
    /^(!?)([a-zA-Z0-9./_-]+)(?:(=|==|!=)([a-zA-Z0-9._-]*))?$/.exec(text) ?? [];
  if (key === '' || (not === '!' && operator !== undefined)) {
    throw new UnknownSelector(`labelSelector: ${text}`);
  }
  const label = (object: Manifest) => metadataOf(object).labels?.[key];
  if (operator === undefined) return (object) => (label(object) === undefined) === (not === '!');
  return (object) => (label(object) === value) === (operator !== '!=');
}

function fieldTerm(text: string): ObjectFilter {
  const [, part = '', field = '', operator, value] =
    /^(?=metadata\.name|spec\.clusterIP|status\.phase)(\w+)\.(\w+)(=|==|!=)([^=]+)$/.exec(text) ??
    [];
  if (part === '') throw new UnknownSelector(`fieldSelector: ${text}`);
  const found = (object: Manifest) =>
    (object[part] as Record<string, unknown> | undefined)?.[field];
  return (object) => (found(object) === value) === (operator !== '!=');
}
