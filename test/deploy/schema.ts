/**
 * Holds objects against the schemas of Kubernetes, offline. Required fields, types, enumerations and
 * formats are checked by kubernetes-models, which lets fields pass that it does not know; those are
 * found by the field lists of client-node's models.
 */
import * as clientNode from '@kubernetes/client-node';
import type { RawObject } from './manifests.ts';

/** A field of a model of client-node. */
interface Attribute {
  readonly baseName: string;
  /** `string`, `V1PodSpec`, `Array<V1Container>`, `{ [key: string]: string; }` and the like. */
  readonly type: string;
}

/** @returns what is wrong with the object; nothing when all is well. */
export async function schemaFaults(object: RawObject): Promise<string[]> {
  const { apiVersion, kind } = object;
  const module = await import(`kubernetes-models/${apiVersion}/${kind}`).catch(() => undefined);
  if (module === undefined) return [`${apiVersion} ${kind} is no kind of Kubernetes`];
  const faults = unknownFields(object);
  try {
    new module[kind](object).validate();
  } catch (error) {
    faults.push((error as Error).message);
  }
  return faults;
}

/** Paths of fields that the kind has not; the object may be a patch, with required fields missing. */
export function unknownFields(object: RawObject): string[] {
  const { apiVersion, kind } = object;
  const version = apiVersion.split('/').at(-1) ?? '';
  const type = `${version.charAt(0).toUpperCase()}${version.slice(1)}${kind}`;
  if (attributesOf(type) === undefined) return [`${type} is not known`];
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
    if (attribute === undefined) return [`${path}.${key} is no field`];
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
