/**
 * The objects that `kubectl kustomize` prints for a folder of deploy/. Fails for what deploy/ does not
 * use.
 */
import { join } from 'node:path';
import { parse } from 'yaml';
import { type RawObject, readObjects, readText } from './manifests.ts';

/** A part of an object. */
type Fields = Record<string, unknown>;

interface Kustomization {
  readonly apiVersion: string;
  readonly kind: string;
  readonly resources: readonly string[];
  readonly images?: readonly { readonly name: string; newName: string; newTag: string }[];
  readonly patches?: readonly {
    readonly path?: string;
    readonly patch?: string;
    readonly target?: { readonly kind: string; readonly name: string };
  }[];
}

/** @param folders a folder, and further components. */
export function kustomize(...folders: readonly string[]): RawObject[] {
  return folders.reduce<RawObject[]>(applyFolder, []);
}

function applyFolder(given: readonly RawObject[], folder: string): RawObject[] {
  const { apiVersion, kind, resources, images, patches, ...unknown }: Kustomization = parse(
    readText(join(folder, 'kustomization.yaml')),
  );
  assertNone(unknown, folder);
  if (!/^kustomize.*(Component|Kustomization)$/.test(apiVersion + kind)) throw new Error(folder);
  const objects = resources.flatMap((entry) => {
    const path = join(folder, entry);
    return path.endsWith('.yaml') ? readObjects(path) : kustomize(path);
  });
  for (const { name, newName, newTag } of images ?? []) {
    for (const container of objects.flatMap(containersOf)) {
      if (container.image === name) container.image = `${newName}:${newTag}`;
    }
  }
  return (patches ?? []).reduce(
    (all, { path, patch, target }) => {
      if (path !== undefined) return readObjects(join(folder, path)).reduce(applyPatch, all);
      const edited = all.filter((object) => matches(object, target?.kind, target?.name));
      for (const object of edited) applyOperations(object, parse(patch ?? ''));
      return all;
    },
    [...given, ...objects],
  );
}

/** A strategic merge patch of one object. */
function applyPatch(objects: readonly RawObject[], patch: RawObject): RawObject[] {
  const isPatched = (object: RawObject) => matches(object, patch.kind, patch.metadata.name);
  if (objects.filter(isPatched).length !== 1) throw new Error(`patch of ${patch.metadata.name}`);
  if (patch.$patch === 'delete') return objects.filter((object) => !isPatched(object));
  return objects.map((object) =>
    isPatched(object) ? (merged(object, patch) as RawObject) : object,
  );
}

/** Lists merge by the keys that Kubernetes declares for the lists in deploy/. */
function merged(value: unknown, patch: unknown): unknown {
  if (Array.isArray(patch)) {
    const list = [...(value as Fields[])];
    for (const item of patch) {
      const key = 'mountPath' in item ? 'mountPath' : 'name';
      const index = list.findIndex((each) => each[key] === item[key]);
      if (index < 0) list.push(item);
      else list[index] = merged(list[index], item) as Fields;
    }
    return list;
  }
  if (typeof patch !== 'object' || patch === null) return patch;
  const fields = Object.entries(patch).map(([name, below]) => {
    return [name, merged((value as Fields | undefined)?.[name], below)];
  });
  return { ...(value as Fields), ...Object.fromEntries(fields) };
}

/** A JSON patch with `test`, and `add` at the end of a list. */
function applyOperations(
  object: RawObject,
  operations: readonly { readonly op: string; readonly path: string; readonly value: unknown }[],
): void {
  for (const { op, path, value } of operations) {
    const keys = path.split('/').slice(1);
    const last = keys.pop() ?? '';
    const parent = keys.reduce<unknown>((below, key) => (below as Fields)[key], object);
    if (op === 'add' && last === '-') (parent as unknown[]).push(value);
    else if (op !== 'test' || (parent as Fields)[last] !== value) throw new Error(`${op} ${path}`);
  }
}

function containersOf(object: RawObject): { image: string }[] {
  const pod = (object.spec as { template?: { spec: Record<string, { image: string }[]> } })
    ?.template;
  return [...(pod?.spec.initContainers ?? []), ...(pod?.spec.containers ?? [])];
}

function matches(object: RawObject, kind?: string, name?: string): boolean {
  return object.kind === kind && object.metadata.name === name;
}

function assertNone(unknown: object, where: string): void {
  const names = Object.keys(unknown);
  if (names.length > 0) throw new Error(`${where}: unsupported fields ${names}`);
}
