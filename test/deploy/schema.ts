/**
 * Validates objects against the Kubernetes schemas, offline. kubernetes-models checks required
 * fields, types, enumerations and formats, but accepts unknown fields. Those are found with the
 * field lists of client-node's models.
 */
import * as clientNode from '@kubernetes/client-node';
import type { RawObject } from './manifests.ts';

/** A field of a client-node model. */
interface Attribute {
  readonly baseName: string;
  /** For example `string`, `V1PodSpec`, `Array<V1Container>`, `{ [key: string]: string; }`. */
  readonly type: string;
}

/** @returns the problems of the object; empty if valid. */
export async function schemaFaults(object: RawObject): Promise<string[]> {
  const { apiVersion, kind } = object;
  const module = await import(`kubernetes-models/${apiVersion}/${kind}`).catch(() => undefined);
  if (module === undefined) return [`${apiVersion} ${kind} is not a Kubernetes kind`];
  const faults = unknownFields(object);
  try {
    new module[kind](object).validate();
  } catch (error) {
    faults.push((error as Error).message);
  }
  return faults;
}

/** Paths of unknown fields. The object may be a patch that lacks required fields. */
export function unknownFields(object: RawObject): string[] {
  const { apiVersion, kind } = object;
  const version = apiVersion.split('/').at(-1) ?? '';
  const type = `${version.charAt(0).toUpperCase()}${version.slice(1)}${kind}`;
  if (attributesOf(type) === undefined) return [`unknown type ${type}`];
  return walk(object, type, kind);
}

function walk(value: unknown, type: string, path: string): string[] {
  if (typeof value !== 'object' || value === null) return [];
  const element = /^Array<(.*)>$/.exec(type)?.[1];
  if (element !== undefined) {
    if (!Array.isArray(value)) return [`${path} must be a list`];
    return value.flatMap((item, index) => walk(item, element, `${path}[${index}]`));
  }
  const member = /^\{ \[key: string\]: (.*); \}$/.exec(type)?.[1];
  if (member !== undefined) {
    return Object.entries(value).flatMap(([key, item]) => walk(item, member, `${path}.${key}`));
  }
  const attributes = attributesOf(type);
  if (attributes === undefined) return [];
  return Object.entries(value).flatMap(([key, item]) => {
    const attribute = attributes.find(({ baseName }) => baseName === key);
    if (attribute === undefined) return [`${path}.${key} is not a field`];
    return walk(item, attribute.type, `${path}.${key}`);
  });
}

function attributesOf(type: string): readonly Attribute[] | undefined {
  const models = clientNode as unknown as Record<
    string,
    { readonly attributeTypeMap?: readonly Attribute[] } | undefined
  >;
  return models[type]?.attributeTypeMap;
}
