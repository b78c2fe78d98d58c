/** The objects of the API-server double, with versions and history as in etcd. */
import { isDeepStrictEqual } from 'node:util';
import type { Manifest } from '../e2e/manifests.ts';

/** A resource that supports list, watch and get. */
export interface ResourceType {
  /** Plural, as in the path. */
  readonly name: string;
  readonly kind: string;
  readonly apiVersion: string;
  readonly namespaced: boolean;
}

export const RESOURCES: readonly ResourceType[] = [
  { name: 'services', kind: 'Service', apiVersion: 'v1', namespaced: true },
  {
    name: 'endpointslices',
    kind: 'EndpointSlice',
    apiVersion: 'discovery.k8s.io/v1',
    namespaced: true,
  },
  { name: 'nodes', kind: 'Node', apiVersion: 'v1', namespaced: false },
  { name: 'pods', kind: 'Pod', apiVersion: 'v1', namespaced: true },
  { name: 'namespaces', kind: 'Namespace', apiVersion: 'v1', namespaced: false },
  {
    name: 'networkpolicies',
    kind: 'NetworkPolicy',
    apiVersion: 'networking.k8s.io/v1',
    namespaced: true,
  },
  {
    name: 'servicecidrs',
    kind: 'ServiceCIDR',
    apiVersion: 'networking.k8s.io/v1',
    namespaced: false,
  },
  ...policyCrds('v1alpha1', {
    adminnetworkpolicies: 'AdminNetworkPolicy',
    baselineadminnetworkpolicies: 'BaselineAdminNetworkPolicy',
    cidrgroups: 'CIDRGroup',
  }),
  // Two versions of one resource: an object exists in both, whichever version it was written in.
  ...policyCrds('v1beta1', { clusternetworkpolicies: 'ClusterNetworkPolicy' }),
  ...policyCrds('v1alpha2', { clusternetworkpolicies: 'ClusterNetworkPolicy' }),
];

function policyCrds(version: string, kinds: Readonly<Record<string, string>>): ResourceType[] {
  const apiVersion = `policy.networking.k8s.io/${version}`;
  return Object.entries(kinds).map(([name, kind]) => ({
    name,
    kind,
    apiVersion,
    namespaced: false,
  }));
}

export interface Metadata {
  readonly name: string;
  readonly namespace?: string;
  readonly labels?: Readonly<Record<string, string>>;
  readonly resourceVersion?: string;
  readonly creationTimestamp?: string;
}

/** One write. */
export interface Change {
  readonly version: number;
  readonly resource: string;
  readonly before: Manifest | undefined;
  readonly after: Manifest | undefined;
}

/** All objects at one version. */
export interface Snapshot {
  readonly version: number;
  readonly objects: ReadonlyMap<string, ReadonlyMap<string, Manifest>>;
}

export class Store {
  #version = 1;
  /** Changes up to and including this version are discarded. */
  #compacted = 0;
  #history: Change[] = [];
  #objects = new Map<string, Map<string, Manifest>>();
  readonly #onChange: (change: Change) => void;

  constructor(onChange: (change: Change) => void) {
    this.#onChange = onChange;
  }

  get version(): number {
    return this.#version;
  }

  get compacted(): number {
    return this.#compacted;
  }

  /** Creates or replaces an object. A write without a difference is ignored. */
  put(manifest: Manifest): void {
    const { name } = resourceOf(manifest);
    const metadata = metadataOf(manifest);
    const objects = this.#of(name);
    const key = keyOf(metadata);
    const before = objects.get(key);
    const version = this.#version + 1;
    const created = before === undefined ? undefined : metadataOf(before).creationTimestamp;
    const after = JSON.parse(
      JSON.stringify({
        ...manifest,
        metadata: {
          creationTimestamp: created ?? '2026-01-01T00:00:00Z',
          ...metadata,
          resourceVersion: String(version),
        },
      }),
    ) as Manifest;
    if (before !== undefined && isDeepStrictEqual(unversioned(before), unversioned(after))) return;
    objects.set(key, after);
    this.#write({ version, resource: name, before, after });
  }

  /** @param key `namespace/name`, or `name` for a cluster-scoped object. */
  delete(resource: string, key: string): void {
    const objects = this.#of(resource);
    const before = objects.get(key);
    if (before === undefined) return;
    objects.delete(key);
    this.#write({ version: this.#version + 1, resource, before, after: undefined });
  }

  get(resource: string, key: string): Manifest | undefined {
    return this.#of(resource).get(key);
  }

  /** Sorted by key, as in etcd. */
  list(resource: string, snapshot?: Snapshot): Manifest[] {
    const objects = snapshot?.objects.get(resource) ?? (snapshot ? [] : this.#of(resource));
    return [...objects].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, object]) => object);
  }

  /** @returns undefined when the history does not go back to that version. */
  changesAfter(resource: string, version: number): Change[] | undefined {
    if (version < this.#compacted) return undefined;
    return this.#history.filter((each) => each.resource === resource && each.version > version);
  }

  /** Discards the history. */
  compact(): void {
    this.#compacted = this.#version;
    this.#history = [];
  }

  snapshot(): Snapshot {
    const objects = [...this.#objects].map(([name, map]) => [name, new Map(map)] as const);
    return { version: this.#version, objects: new Map(objects) };
  }

  /** Restores a snapshot of etcd: later objects and versions are lost. */
  restore({ version, objects }: Snapshot): void {
    this.#version = version;
    this.#compacted = Math.min(this.#compacted, version);
    this.#history = this.#history.filter((change) => change.version <= version);
    this.#objects = new Map([...objects].map(([name, map]) => [name, new Map(map)]));
  }

  #of(resource: string): Map<string, Manifest> {
    let objects = this.#objects.get(resource);
    if (objects === undefined) {
      objects = new Map();
      this.#objects.set(resource, objects);
    }
    return objects;
  }

  #write(change: Change): void {
    this.#version = change.version;
    this.#history.push(change);
    this.#onChange(change);
  }
}

/** @throws RangeError for an object of an unknown resource. */
export function resourceOf(manifest: Manifest): ResourceType {
  const { kind, apiVersion } = manifest;
  const found = RESOURCES.find((type) => type.kind === kind && type.apiVersion === apiVersion);
  if (found === undefined) throw new RangeError(`the double has no ${apiVersion} ${kind}`);
  return found;
}

export function metadataOf(manifest: Manifest): Metadata {
  return manifest.metadata as Metadata;
}

export function keyOf({ namespace, name }: Metadata): string {
  return namespace === undefined ? name : `${namespace}/${name}`;
}

function unversioned(manifest: Manifest): Manifest {
  return { ...manifest, metadata: { ...metadataOf(manifest), resourceVersion: undefined } };
}
