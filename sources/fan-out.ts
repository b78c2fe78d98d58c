/** One sink for several that want the same objects. */
import type { ObjectSink } from './store.ts';

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
