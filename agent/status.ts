/** The servers of the status API, and what the agent remembers for it. Everything else is loaded on the first request. */
import { chmodSync, lstatSync, mkdirSync, unlinkSync } from 'node:fs';
import type { RequestListener } from 'node:http';
import { dirname } from 'node:path';
import { Listener } from '../process/listener.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import { startHttpServer } from '../process/serve.ts';
import { RecentEvents } from '../status/recent-events.ts';
import { SeriesRecorder } from '../status/series.ts';
import { SyncActivity } from '../status/sync-activity.ts';
import { WatchActivity } from '../status/watch-activity.ts';
import { systemTimers } from '../sync/timers.ts';
import type { AgentContext } from './context.ts';
import type { StatusAnswers, StatusInputs } from './status-answers.ts';
import { recordSeries } from './status-series.ts';

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

/** Starts the servers of `--status-socket` and `--status-bind-address`. A failure is logged and retried. */
export function startStatus(
  context: AgentContext,
  inputs: StatusInputs,
): { close(): Promise<void> } {
  const { log, options } = context;
  let loading: Promise<StatusAnswers> | undefined;
  // Nothing of the API takes memory before the first request.
  const load = () => {
    loading ??= import('./status-answers.ts').then(({ createStatusAnswers }) =>
      createStatusAnswers(context, inputs),
    );
    return loading;
  };
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
    ...serveSocket(options.statusSocket, handler(undefined), context),
    ...serveAddress(context, handler),
  ];
  const stopSampling = servers.length === 0 ? () => {} : recordSeries(context);
  return {
    close: async () => {
      stopSampling();
      for (const server of servers) server.close();
      await (await loading?.catch(() => undefined))?.close();
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

/** Only root can enter the directory and connect. */
const DIRECTORY_MODE = 0o700;
const SOCKET_MODE = 0o600;

function serveSocket(
  path: string | undefined,
  onRequest: RequestListener,
  { log }: AgentContext,
): Listener[] {
  if (path === undefined) return [];
  const flag = '--status-socket';
  const failures = new RepeatedFailures(log);
  const server = new Listener({
    listen: { path },
    prepare: () => {
      mkdirSync(dirname(path), { recursive: true, mode: DIRECTORY_MODE });
      removeSocket(path);
    },
    onListening: () => chmodSync(path, SOCKET_MODE),
    onRequest,
    onFailure: (err) => failures.failed(flag, { flag, err }, 'cannot listen; retrying'),
    onRecovery: () => failures.succeeded(flag, { flag }, 'listening again'),
    timers: systemTimers,
  });
  return [server];
}

/**
 * Removes the socket of an agent that was killed. The caller holds the node lock, so no agent uses the socket.
 * @throws Error if the path is something else than a socket.
 */
function removeSocket(path: string): void {
  const stats = lstatSync(path, { throwIfNoEntry: false });
  if (stats === undefined) return;
  if (!stats.isSocket()) throw new Error(`${path} exists and is not a socket`);
  unlinkSync(path);
}
