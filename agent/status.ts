/** The servers of the status API, and what the agent remembers for it. Everything else is loaded on the first request. */
import type { RequestListener } from 'node:http';
import type { Listener } from '../process/listener.ts';
import { startHttpServer } from '../process/serve.ts';
import { RecentEvents } from '../status/recent-events.ts';
import { SeriesRecorder } from '../status/series.ts';
import { SyncActivity } from '../status/sync-activity.ts';
import { WatchActivity } from '../status/watch-activity.ts';
import type { AgentContext } from './context.ts';
import type { StatusAnswers, StatusInputs } from './status-answers.ts';
import { recordSeries } from './status-series.ts';
import { serveOnSocket } from './status-socket.ts';

/** What the agent remembers for the status API. */
export interface StatusActivity {
  readonly syncs: SyncActivity;
  readonly watches: WatchActivity;
  readonly events: RecentEvents;
  readonly series: SeriesRecorder;
}

export function createStatusActivity(): StatusActivity {
  return {
    syncs: new SyncActivity(),
    watches: new WatchActivity(),
    events: new RecentEvents(),
    series: new SeriesRecorder(),
  };
}

/**
 * Loads something at the first call of `load`, for all callers; again after a failure, because a shortage of file descriptors
 * ends. `loaded` starts nothing: it has the result of a load that has begun, if any.
 */
export function loadOnce<T>(start: () => Promise<T>): {
  load(): Promise<T>;
  loaded(): Promise<T | undefined>;
} {
  let loading: Promise<T> | undefined;
  return {
    load: () => {
      loading ??= start().catch((error: unknown) => {
        loading = undefined;
        throw error;
      });
      return loading;
    },
    loaded: async () => loading?.catch(() => undefined),
  };
}

/** Starts the servers of `--status-socket` and `--status-bind-address`. A failure is logged and retried. */
export async function startStatus(
  context: AgentContext,
  inputs: StatusInputs,
): Promise<{ close(): Promise<void> }> {
  const { log, options } = context;
  // Nothing of the API takes memory before the first request.
  const { load, loaded } = loadOnce<StatusAnswers>(async () => {
    const { createStatusAnswers } = await import('./status-answers.ts');
    return createStatusAnswers(context, inputs);
  });
  const handler =
    (bindHost: string | undefined): RequestListener =>
    (request, response) => {
      load().then(
        (answers) => answers.handler(bindHost)(request, response),
        (err: unknown) => {
          log.error({ err }, 'cannot load the status API');
          response.destroy();
        },
      );
    };
  const servers = [
    ...(options.statusSocket === undefined
      ? []
      : [await serveOnSocket(options.statusSocket, handler(undefined), log)]),
    ...serveAddress(context, handler),
  ];
  const stopSampling = servers.length === 0 ? () => {} : recordSeries(context);
  return {
    close: async () => {
      stopSampling();
      for (const server of servers) server.close();
      await (await loaded())?.close();
    },
  };
}

function serveAddress(
  { options, log, events }: AgentContext,
  handler: (bindHost: string) => RequestListener,
): Listener[] {
  const { statusBindAddress: address } = options;
  if (address === undefined) return [];
  const server = startHttpServer('--status-bind-address', address, handler(address.host), {
    hardFail: options.bindAddressHardFail,
    log,
    onFailure: (error) => events.startFailed('FailedToStartStatusServer', error),
  });
  return [server];
}
