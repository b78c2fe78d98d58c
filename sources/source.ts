/** sources/ reads objects from an API server or a directory of manifests; this is what sources have in common. */
import type { ApiObject, Kind, ObjectKey } from '../api/objects.ts';
import type { Log } from '../process/log.ts';

/**
 * Where sources put what they read. A source calls `upsert` and `remove` as objects come, change
 * and go, and `synced` for a kind once everything that existed at its start has been handed over.
 * Nothing is programmed before all kinds are synced. All calls are synchronous and cheap.
 */
export interface ObjectSink {
  upsert(object: ApiObject): void;
  remove(kind: Kind, key: ObjectKey): void;
  synced(kind: Kind): void;
}

/**
 * A sink that hands everything on to several, in their order.
 * @param sinks may get more until the source starts.
 */
export function fanOut(sinks: readonly ObjectSink[]): ObjectSink {
  return {
    upsert: (object) => {
      for (const sink of sinks) sink.upsert(object);
    },
    remove: (kind, key) => {
      for (const sink of sinks) sink.remove(kind, key);
    },
    synced: (kind) => {
      for (const sink of sinks) sink.synced(kind);
    },
  };
}

/** Takes pino's loggers as they are. */
export type SourceLog = Pick<Log, 'info' | 'warn'>;

/** A running source of objects. */
export interface Source {
  /** Starts reading; resolves when the first listing was handed over, goes on in the background. */
  start(): Promise<void>;
  stop(): Promise<void>;
  /** How many objects of a kind cannot be read as they are now; nothing of kinds without any. */
  unreadable(): ReadonlyMap<string, number>;
}
