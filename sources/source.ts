/**
 * sources/ reads objects from an API server or a manifest directory; this file defines the
 * interfaces common to both.
 */
import type { ApiObject, Kind, ObjectKey } from '../api/objects.ts';
import type { Log } from '../process/log.ts';

/**
 * Receives the objects of a source. The source calls `upsert` and `remove` for each change, and
 * `synced` once per kind after delivering all objects that existed at start. A proxy mode, or network
 * policy, programs nothing before all kinds that it needs are synced. All calls are synchronous and
 * cheap.
 *
 * For a watch that `PodWatches` began, the source calls `synced` with the namespace.
 */
export interface ObjectSink {
  upsert(object: ApiObject): void;
  remove(kind: Kind, key: ObjectKey): void;
  synced(kind: Kind, namespace?: string): void;
}

/**
 * A sink that forwards every call to several sinks, in their order.
 * @param sinks may grow until the source starts.
 */
export function fanOut(sinks: readonly ObjectSink[]): ObjectSink {
  return {
    upsert: (object) => {
      for (const sink of sinks) sink.upsert(object);
    },
    remove: (kind, key) => {
      for (const sink of sinks) sink.remove(kind, key);
    },
    synced: (kind, namespace) => {
      for (const sink of sinks) sink.synced(kind, namespace);
    },
  };
}

/** Compatible with pino loggers. */
export type SourceLog = Pick<Log, 'info' | 'warn'>;

/** What is in force instead of an object or a file that cannot be read. */
export const IN_FORCE = {
  last: 'the last readable version stays in force',
  none: 'it is not in force: no version was readable',
  parts: 'the readable objects of the file are in force',
} as const;

/** An object or a file that currently cannot be read. */
export interface SourceFault {
  /** `Service default/web`; undefined if it is not known. */
  readonly object: string | undefined;
  /** Place, field and reason in one line. */
  readonly message: string;
  /** undefined if `message` says it. */
  readonly inForce: keyof typeof IN_FORCE | undefined;
}

/** Watches of the Pods of single namespaces, for the time in which something needs them. */
export interface PodWatches {
  /**
   * Delivers the Pods of a namespace, then calls `synced` with the namespace. A source that delivers all Pods delivers the
   * known Pods of the namespace once more.
   * @param onForbidden called when the API server forbids to read the Pods of the namespace twice in a row. The source tries
   * again.
   */
  begin(namespace: string, onForbidden: () => void): void;
  /** Delivers nothing more for the namespace, unless the source delivers all Pods. The sink must forget its Pods. */
  end(namespace: string): void;
}

/** A running source of objects. */
export interface Source {
  /** undefined: the source delivers the Pods of all namespaces, before it calls `synced` for any kind. */
  readonly podWatches?: PodWatches;
  /**
   * Starts reading. Resolves after the initial objects of all kinds were delivered; updates continue
   * in the background.
   */
  start(): Promise<void>;
  stop(): Promise<void>;
  /** Number of objects that currently cannot be read, by kind; without kinds whose number is 0. */
  unreadable(): ReadonlyMap<string, number>;
  /** What currently cannot be read. */
  faults(): Iterable<SourceFault>;
}
