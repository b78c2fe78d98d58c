import { isDeepStrictEqual } from 'node:util';
import type { Manifest } from '../e2e/manifests.ts';
import { statusBody, type Verb } from './faults.ts';
import { keyOf, metadataOf } from './store.ts';

interface EventResponse {
  readonly code: number;
  readonly body: object;
}

type Fields = Readonly<Record<string, unknown>>;

/**
 * Stores Events of events.k8s.io/v1; applies the rules of ValidateEventCreate and
 * ValidateEventUpdate.
 */
export class EventStore {
  readonly #events = new Map<string, Manifest>();

  list(): Manifest[] {
    return [...this.#events.values()];
  }

  /** Creates an Event, or applies a JSON merge patch to it. */
  write(verb: Verb, namespace: string | undefined, name: string, body: Manifest): EventResponse {
    if (verb === 'patch') return this.#patch(`${namespace}/${name}`, body);
    const metadata = metadataOf(body) ?? {};
    const wrong = invalidField(body, namespace);
    if (wrong !== undefined) return invalid(wrong);
    const key = keyOf({ ...metadata, namespace: namespace ?? '' });
    if (this.#events.has(key)) {
      return { code: 409, body: statusBody(409, 'AlreadyExists', `events "${key}"`) };
    }
    const event = { ...body, metadata: { ...metadata, namespace } };
    this.#events.set(key, event);
    return { code: 201, body: event };
  }

  #patch(key: string, patch: Manifest): EventResponse {
    const before = this.#events.get(key);
    if (before === undefined) {
      return { code: 404, body: statusBody(404, 'NotFound', `events "${key}"`) };
    }
    const event = merge(before, patch) as Manifest;
    const wrong = isDeepStrictEqual(unchanging(before), unchanging(event))
      ? invalidSeries(event)
      : 'a field other than series';
    if (wrong !== undefined) return invalid(wrong);
    this.#events.set(key, event);
    return { code: 200, body: event };
  }
}

function invalid(field: string): EventResponse {
  return { code: 422, body: statusBody(422, 'Invalid', `${field}: invalid or missing`) };
}

/** The first field that Kubernetes would reject. */
function invalidField(event: Manifest, namespace: string | undefined): string | undefined {
  const { metadata, regarding, type, note = '' } = event as Record<string, Fields>;
  if (event.kind !== 'Event' || event.apiVersion !== 'events.k8s.io/v1') return 'kind';
  if (typeof metadata?.name !== 'string' || metadata.name === '') return 'metadata.name';
  if ((metadata.namespace ?? namespace) !== namespace) return 'metadata.namespace';
  // Events about cluster-scoped objects are in one of two namespaces.
  const clusterWide = (regarding?.namespace ?? '') === '';
  if (clusterWide && namespace !== 'default' && namespace !== 'kube-system') {
    return 'regarding.namespace';
  }
  if (!isMicroTime(event.eventTime)) return 'eventTime';
  for (const field of ['reportingController', 'reportingInstance', 'action', 'reason']) {
    const value = event[field];
    if (typeof value !== 'string' || value === '' || value.length > 128) return field;
  }
  if (!['Normal', 'Warning'].includes(String(type))) return 'type';
  if (typeof note !== 'string' || Buffer.byteLength(note) > 1024) return 'note';
  return invalidSeries(event);
}

function invalidSeries({ series }: Manifest): string | undefined {
  if (series === undefined) return undefined;
  const { count, lastObservedTime } = series as Fields;
  return Number(count) >= 2 && isMicroTime(lastObservedTime) ? undefined : 'series';
}

function unchanging(event: Manifest): Manifest {
  return { ...event, series: undefined };
}

function isMicroTime(value: unknown): boolean {
  return typeof value === 'string' && /^\d{4}-\d\d-\d\dT[\d:]{8}\.\d{6}Z$/.test(value);
}

/** A JSON merge patch (RFC 7396). */
function merge(target: unknown, patch: unknown): unknown {
  if (!isObject(patch)) return patch;
  const merged: Record<string, unknown> = isObject(target) ? { ...target } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete merged[key];
    else merged[key] = merge(merged[key], value);
  }
  return merged;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
