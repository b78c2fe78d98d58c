import type { RunOptions } from '../config/settings.ts';
import type { ApiObserver } from '../metrics/api-server.ts';
import type { RouteTable } from '../proxier/route-table.ts';

export interface StartupOptions {
  readonly options: Pick<RunOptions, 'manifests' | 'detectLocalMode'>;
  readonly nodeName: string;
  readonly table: Pick<RouteTable, 'unsynced' | 'node'>;
  /** Whether there has been no Node so far, where there has to be one. */
  readonly isNodeAwaited: () => boolean;
}

/** What rules are made from and the agent has not got yet. */
export interface Startup {
  /** In words for an operator; nothing when all is there. */
  missingInputs(): readonly string[];
  /** Has it know of which API server something is asked, and passes all on. */
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
      if (isNodeAwaited()) return [`${node}, which ${server} does not have`];
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
