import type { RunOptions } from '../config/settings.ts';
import type { ApiObserver } from '../metrics/api-server.ts';
import type { RouteTable } from '../proxier/route-table.ts';

export interface StartupOptions {
  readonly options: Pick<RunOptions, 'manifests' | 'detectLocalMode'>;
  readonly nodeName: string;
  readonly table: Pick<RouteTable, 'unsynced' | 'node'>;
  /** Whether the Node is required and has not been seen yet. */
  readonly isNodeAwaited: () => boolean;
}

/** Tracks the inputs that the agent needs before it can write rules. */
export interface Startup {
  /** The inputs that are still missing, in words for operators; empty if none is. */
  missingInputs(): readonly string[];
  /** Wraps an observer to learn the API server's name for `missingInputs`; all calls are passed on. */
  observing(observer: ApiObserver): ApiObserver;
}

export function trackStartup({ options, nodeName, table, isNodeAwaited }: StartupOptions): Startup {
  const { manifests, detectLocalMode } = options;
  let server = 'the API server';
  const node = `Node "${nodeName}"`;
  return {
    missingInputs() {
      const unsynced = [...table.unsynced];
      if (unsynced.length > 0 && manifests !== undefined) return [`manifests in ${manifests}`];
      if (unsynced.length > 0) {
        return unsynced.map((kind) => `${kind === 'Node' ? node : `${kind}s`} from ${server}`);
      }
      if (isNodeAwaited()) return [`${node} (${server} has no such object)`];
      const hasCidrs = (table.node?.podCIDRs ?? []).length > 0;
      const needsCidrs = detectLocalMode === 'NodeCIDR' && !hasCidrs;
      return needsCidrs ? [`pod CIDRs of ${node} (--detect-local-mode=NodeCIDR)`] : [];
    },
    observing: (observer) => ({
      ...observer,
      request: (request) => {
        server = `the API server ${request.host}`;
        observer.request(request);
      },
    }),
  };
}
