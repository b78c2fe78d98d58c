import type { IncomingMessage } from 'node:http';
import type { Verb } from './faults.ts';
import { RESOURCES, type ResourceType } from './store.ts';

/** A parsed API request. */
export interface Request {
  readonly verb: Verb;
  /** Empty for the core group. */
  readonly group: string;
  readonly type: ResourceType;
  readonly namespace: string | undefined;
  /** Empty for a list or watch. */
  readonly name: string;
  readonly path: string;
  readonly query: Readonly<Record<string, string>>;
  /** Asks for metadata only (`PartialObjectMetadataList`). */
  readonly metadataOnly: boolean;
}

const EVENTS: ResourceType = {
  name: 'events',
  kind: 'Event',
  apiVersion: 'events.k8s.io/v1',
  namespaced: true,
};

const PATH =
  /^\/(?:api\/(?<core>v1)|apis\/(?<group>[^/]+)\/(?<version>[^/]+))(?:\/namespaces\/(?<namespace>[^/]+))?\/(?<resource>[^/]+)(?:\/(?<name>[^/]+))?$/;

/**
 * Parses a request. The path may have a prefix, as behind a proxy.
 * @returns undefined for a path or method that the double does not support.
 */
export function requestOf(incoming: IncomingMessage): Request | undefined {
  const { method, url = '/', headers } = incoming;
  const { pathname: path, searchParams } = new URL(url, 'http://localhost');
  const { groups } = PATH.exec(path.slice(Math.max(0, path.search(/\/apis?\//)))) ?? {};
  if (groups === undefined) return undefined;
  const { core, group = '', version, namespace, resource, name = '' } = groups;
  const apiVersion = core ?? `${group}/${version}`;
  const type = [...RESOURCES, EVENTS].find(
    (each) => each.name === resource && each.apiVersion === apiVersion,
  );
  const query = Object.fromEntries(searchParams);
  const verb = verbOf(method, name, query.watch === 'true');
  if (type === undefined || verb === undefined) return undefined;
  if ((type === EVENTS) !== (verb === 'create' || verb === 'patch')) return undefined;
  const metadataOnly = headers.accept?.includes('as=PartialObjectMetadataList') === true;
  return { verb, group, type, namespace, name, path, query, metadataOnly };
}

/** The verb as in RBAC. */
function verbOf(method: string | undefined, name: string, watches: boolean): Verb | undefined {
  if (method === 'POST' && name === '') return 'create';
  if (method === 'PATCH' && name !== '') return 'patch';
  if (method !== 'GET') return undefined;
  if (name !== '') return 'get';
  return watches ? 'watch' : 'list';
}
