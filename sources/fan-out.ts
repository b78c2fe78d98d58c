import type { ObjectSink } from './store.ts';

/** A sink that hands everything on to several, in their order. */
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
