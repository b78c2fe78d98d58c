/** Builds `events.k8s.io/v1` Event objects. */
import { createHash } from 'node:crypto';
import type { Kind, ObjectKey } from '../api/objects.ts';
import { API_VERSIONS } from '../api/read-object.ts';

/** The object that an Event is about. */
export interface ObjectRef {
  readonly apiVersion: string;
  readonly kind: Kind;
  /** Empty for a cluster-scoped object, such as a Node. */
  readonly namespace: string;
  readonly name: string;
  /** `kubectl describe` finds Events by uid; empty when unknown. */
  readonly uid: string;
}

/** One occurrence of an Event. Equal occurrences are later combined into a series. */
export interface Occurrence {
  readonly type: 'Normal' | 'Warning';
  readonly regarding: ObjectRef;
  /** Machine-readable reason: `RefusedNodePort`. */
  readonly reason: string;
  /** The action that failed or succeeded: `ServeService`. */
  readonly action: string;
  /** Human-readable description. */
  readonly note: string;
  /**
   * `cluster`: every node reports the same occurrence, and all nodes share one Event. `node`: the
   * occurrence concerns only this node.
   */
  readonly scope: 'node' | 'cluster';
}

/** The series of an Event that occurred more than once. */
export interface Series {
  /** 2 or more. */
  readonly count: number;
  /** Milliseconds since 1970. */
  readonly lastObserved: number;
}

/** `reportingController` of all Events. */
const CONTROLLER = 'portwide';
/** Limits of the API server in bytes (ValidateEventCreate). */
const MAX_NOTE_BYTES = 1024;
const MAX_INSTANCE_LENGTH = 128;
/** Leaves room for the timestamp or hash in the Event name, which has at most 253 characters. */
const MAX_NAME_PREFIX = 230;

export function serviceRef(key: ObjectKey, uid: string): ObjectRef {
  return objectRef({ kind: 'Service', key, uid });
}

/**
 * References an object of any kind. Uses the newest supported apiVersion, even if the API server
 * has only an older version.
 */
export function objectRef(object: {
  readonly kind: Kind;
  readonly key: ObjectKey;
  readonly uid: string;
}): ObjectRef {
  const { kind, key, uid } = object;
  const [name = '', namespace = ''] = key.split('/').reverse();
  return { apiVersion: API_VERSIONS[kind][0], kind, namespace, name, uid };
}

/** References a Node as kube-proxy and the kubelet do: the name is also the uid. */
export function nodeRef(name: string): ObjectRef {
  return objectRef({ kind: 'Node', key: name, uid: name });
}

/** The `reportingInstance` of Events from the agent on a node. */
export function reportingInstanceOf(nodeName: string): string {
  return `${CONTROLLER}-${nodeName}`.slice(0, MAX_INSTANCE_LENGTH);
}

/**
 * Occurrences with the same key form one Event. As in client-go, but the note is part of the key: a
 * Service may be refused for one reason on two VIPs, and both must be visible.
 */
export function occurrenceKey({ type, regarding, reason, action, note }: Occurrence): string {
  const { kind, namespace, name, uid } = regarding;
  return JSON.stringify([type, kind, namespace, name, uid, reason, action, note]);
}

/** Namespace of an Event; `default` for cluster-scoped objects, as the API requires. */
export function namespaceOf({ namespace }: ObjectRef): string {
  return namespace === '' ? 'default' : namespace;
}

/**
 * Names an Event as client-go does: the object name and the time in nanoseconds, in hexadecimal.
 * @param time milliseconds since 1970.
 * @param offset nanoseconds within the millisecond, 0 to 999,999. It keeps names distinct, both
 * within one millisecond and among nodes, which observe the same changes at the same time.
 */
export function eventName(regarding: ObjectRef, time: number, offset: number): string {
  const nanoseconds = BigInt(Math.floor(time)) * 1_000_000n + BigInt(offset);
  return `${namePrefix(regarding)}.${nanoseconds.toString(16)}`;
}

/**
 * Names a shared Event equally on all nodes: one node creates it, and the others find it by name.
 */
export function sharedEventName(occurrence: Occurrence): string {
  const hash = createHash('sha256').update(occurrenceKey(occurrence)).digest('hex');
  return `${namePrefix(occurrence.regarding)}.${hash.slice(0, 16)}`;
}

function namePrefix({ name }: ObjectRef): string {
  return name.slice(0, MAX_NAME_PREFIX).replace(/[-.]+$/, '');
}

/**
 * Builds the Event object to create.
 * @param instance `reportingInstance` of this node.
 * @param time milliseconds since 1970.
 */
export function eventBody(
  occurrence: Occurrence,
  instance: string,
  { name, time }: { readonly name: string; readonly time: number },
  series: Series | undefined,
): object {
  const { type, regarding, reason, action, note, scope } = occurrence;
  const { uid, ...reference } = regarding;
  return {
    apiVersion: 'events.k8s.io/v1',
    kind: 'Event',
    metadata: { name, namespace: namespaceOf(regarding) },
    eventTime: microTime(time),
    reportingController: CONTROLLER,
    // Do not name this node: a shared Event concerns all nodes.
    reportingInstance: scope === 'cluster' ? CONTROLLER : instance,
    type,
    reason,
    action,
    note: truncateNote(note),
    regarding: { ...reference, ...(uid === '' ? {} : { uid }) },
    ...(series === undefined ? {} : seriesPatch(series)),
  };
}

/** A merge patch for an existing Event. The API server rejects changes outside metadata and series. */
export function seriesPatch({ count, lastObserved }: Series): object {
  return { series: { count, lastObservedTime: microTime(lastObserved) } };
}

/** The API's MicroTime requires exactly six fractional digits. */
function microTime(time: number): string {
  return new Date(time).toISOString().replace('Z', '000Z');
}

function truncateNote(note: string): string {
  const bytes = Buffer.from(note);
  if (bytes.length <= MAX_NOTE_BYTES) return note;
  // A truncated UTF-8 sequence decodes to U+FFFD.
  return `${bytes
    .subarray(0, MAX_NOTE_BYTES - 6)
    .toString()
    .replace(/\ufffd$/, '')}...`;
}
