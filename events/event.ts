/** Objects of `events.k8s.io/v1` as Portwide writes them. */
import { createHash } from 'node:crypto';
import type { Kind, ObjectKey } from '../api/objects.ts';
import { API_VERSIONS } from '../api/read-object.ts';

/** The object that an Event is about. */
export interface ObjectRef {
  readonly apiVersion: string;
  readonly kind: Kind;
  /** Empty for what is in no namespace, such as a Node. */
  readonly namespace: string;
  readonly name: string;
  /** `kubectl describe` finds Events by it; empty when it is not known. */
  readonly uid: string;
}

/** Something that happened, as whoever saw it tells it. */
export interface Occurrence {
  readonly type: 'Normal' | 'Warning';
  readonly regarding: ObjectRef;
  /** Why, in one word: `RefusedNodePort`. */
  readonly reason: string;
  /** What was being done: `ServeService`. */
  readonly action: string;
  /** For people. */
  readonly note: string;
  /** `cluster`: every node reports the same, and all share one Event. `node`: it concerns this node only. */
  readonly scope: 'node' | 'cluster';
}

/** An occurrence that came again. */
export interface Series {
  /** 2 or more. */
  readonly count: number;
  /** Milliseconds since 1970. */
  readonly lastObserved: number;
}

/** What reports all Events. */
const CONTROLLER = 'portwide';
/** What the API server takes at most, in bytes (ValidateEventCreate). */
const MAX_NOTE = 1024;
const MAX_INSTANCE = 128;
/** Leaves room for the time in the name of the Event, which is at most 253 long. */
const MAX_NAME = 230;

export function serviceRef(key: ObjectKey, uid: string): ObjectRef {
  return objectRef({ kind: 'Service', key, uid });
}

/** Of any kind, in the newest version that it is read in, whichever the API server has. */
export function objectRef(object: {
  readonly kind: Kind;
  readonly key: ObjectKey;
  readonly uid: string;
}): ObjectRef {
  const { kind, key, uid } = object;
  const [name = '', namespace = ''] = key.split('/').reverse();
  return { apiVersion: API_VERSIONS[kind][0], kind, namespace, name, uid };
}

/** As kube-proxy and the kubelet refer to their Node: its name is its uid. */
export function nodeRef(name: string): ObjectRef {
  return objectRef({ kind: 'Node', key: name, uid: name });
}

/** The `reportingInstance` of one node. */
export function reportingInstanceOf(nodeName: string): string {
  return `${CONTROLLER}-${nodeName}`.slice(0, MAX_INSTANCE);
}

/**
 * Occurrences with the same key are one Event. As in client-go but for the note, which is part of
 * it here: a Service may be refused for one reason on two VIPs, and both are to be seen.
 */
export function occurrenceKey({ type, regarding, reason, action, note }: Occurrence): string {
  const { kind, namespace, name, uid } = regarding;
  return JSON.stringify([type, kind, namespace, name, uid, reason, action, note]);
}

/** Events about what has no namespace are in `default`, by the API's rules. */
export function namespaceOf({ namespace }: ObjectRef): string {
  return namespace === '' ? 'default' : namespace;
}

/**
 * As client-go names them: the object, and the time in nanoseconds, hexadecimal.
 * @param time milliseconds since 1970.
 * @param offset nanoseconds within the millisecond, 0 to 999,999. Two Events must not have the same
 * name, be they of one millisecond or of two nodes, which see the same things at the same time.
 */
export function eventName(regarding: ObjectRef, time: number, offset: number): string {
  const nanoseconds = BigInt(Math.floor(time)) * 1_000_000n + BigInt(offset);
  return `${namePrefix(regarding)}.${nanoseconds.toString(16)}`;
}

/** The same on every node, so that one node creates the Event and the others find it. */
export function sharedEventName(occurrence: Occurrence): string {
  const hash = createHash('sha256').update(occurrenceKey(occurrence)).digest('hex');
  return `${namePrefix(occurrence.regarding)}.${hash.slice(0, 16)}`;
}

function namePrefix({ name }: ObjectRef): string {
  return name.slice(0, MAX_NAME).replace(/[-.]+$/, '');
}

/**
 * The whole object, for its creation.
 * @param instance of the node that writes it.
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
    // A shared Event must not look as if it concerned the node that wrote it.
    reportingInstance: scope === 'cluster' ? CONTROLLER : instance,
    type,
    reason,
    action,
    note: truncateNote(note),
    regarding: { ...reference, ...(uid === '' ? {} : { uid }) },
    ...(series === undefined ? {} : seriesPatch(series)),
  };
}

/** A merge patch of an Event that is there: nothing else of one may change. */
export function seriesPatch({ count, lastObserved }: Series): object {
  return { series: { count, lastObservedTime: microTime(lastObserved) } };
}

/** The API's MicroTime has six digits, no more and no less. */
function microTime(time: number): string {
  return new Date(time).toISOString().replace('Z', '000Z');
}

function truncateNote(note: string): string {
  const bytes = Buffer.from(note);
  if (bytes.length <= MAX_NOTE) return note;
  // What is left of a character that was cut becomes U+FFFD.
  return `${bytes
    .subarray(0, MAX_NOTE - 6)
    .toString()
    .replace(/\ufffd$/, '')}...`;
}
