/** The status API of a running agent: what it reads, and the servers that answer. */
import { chmodSync, lstatSync, mkdirSync, unlinkSync } from 'node:fs';
import type { RequestListener } from 'node:http';
import { release } from 'node:os';
import { dirname } from 'node:path';
import type { Kind } from '../api/objects.ts';
import type { ProxyMode } from '../config/node-settings.ts';
import { Listener } from '../process/listener.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import { startHttpServer } from '../process/serve.ts';
import { VERSION } from '../process/version.ts';
import type { Backend } from '../proxier/backend.ts';
import { statusHandler } from '../status/http/handler.ts';
import { RequestBudget } from '../status/http/request-budget.ts';
import { pageResources } from '../status/page-resources.ts';
import { RecentEvents } from '../status/recent-events.ts';
import { statusResources } from '../status/resources.ts';
import { SAMPLE_INTERVAL, type Sample, SeriesRecorder } from '../status/series.ts';
import type { StatusSources } from '../status/sources.ts';
import { SyncActivity } from '../status/sync-activity.ts';
import { WatchActivity } from '../status/watch-activity.ts';
import { callPeriodically, systemTimers } from '../sync/timers.ts';
import type { AgentContext } from './context.ts';
import { kernelFeatures } from './kernel-features.ts';
import { readSysctl } from './node-setup.ts';

/** What the agent remembers for the status API. */
export interface StatusActivity {
  readonly syncs: SyncActivity;
  readonly watches: WatchActivity;
  readonly events: RecentEvents;
}

export function createStatusActivity(): StatusActivity {
  return { syncs: new SyncActivity(), watches: new WatchActivity(), events: new RecentEvents() };
}

interface StatusOptions {
  readonly kinds: readonly Kind[];
  readonly missingInputs: () => readonly string[];
  /** The backends of the started mode; empty before. */
  readonly backends: () => readonly Backend[];
  /** undefined without network policy. */
  readonly policy: StatusSources['policy'];
}

/** Starts the servers of `--status-socket` and `--status-bind-address`. A failure is logged and retried. */
export function startStatus(
  context: AgentContext,
  { kinds, missingInputs, backends, policy }: StatusOptions,
): { close(): void } {
  const { options, table, nodeName, modeDefinition, supportedMode, status, log } = context;
  const series = new SeriesRecorder();
  const sources: StatusSources = {
    version: VERSION,
    nodeName,
    startedAt: Math.round(performance.timeOrigin),
    mode: { name: modeDefinition.name, reason: modeReason(options.proxyMode) },
    manifests: options.manifests,
    families: supportedMode.families,
    missingInputs,
    table,
    kinds,
    backends,
    nodeAddresses: () => [...table.nodeAddresses],
    ...status,
    series,
    kernelFeatures,
    kernelRelease: release(),
    policy,
  };
  const resources = { ...statusResources(sources), ...pageResources() };
  const handler = (bindHost: string | undefined): RequestListener =>
    statusHandler({
      resources,
      bindHost,
      budget: new RequestBudget(systemTimers),
      onError: (err, path) => log.warn({ err, path }, 'status API cannot answer a request'),
    });
  const servers = [
    ...serveSocket(options.statusSocket, handler(undefined), context),
    ...serveAddress(context, handler),
  ];
  const stopSampling =
    servers.length === 0 ? () => {} : recordSeries(series, { ...context, syncs: status.syncs });
  return {
    close: () => {
      stopSampling();
      for (const server of servers) server.close();
    },
  };
}

/** Adds a sample every `SAMPLE_INTERVAL`. @returns a function that stops this. */
function recordSeries(
  series: SeriesRecorder,
  sources: Pick<AgentContext, 'table'> & { readonly syncs: SyncActivity },
): () => void {
  const add = async () => series.add(await readSample(sources), Date.now());
  void add();
  return callPeriodically(systemTimers, SAMPLE_INTERVAL, () => void add());
}

async function readSample({
  table,
  syncs,
}: Pick<AgentContext, 'table'> & { readonly syncs: SyncActivity }): Promise<Sample> {
  const { user, system } = process.cpuUsage();
  const entries = await readSysctl('net.netfilter.nf_conntrack_count').catch(() => undefined);
  return {
    syncs: syncs.ended,
    syncSeconds: syncs.takeLongestSync(),
    conntrackEntries: entries === undefined ? undefined : Number(entries),
    services: table.serviceCounts.total,
    endpoints: table.routeCounts.endpoints,
    cpuSeconds: (user + system) / 1e6,
    memory: process.memoryUsage.rss(),
  };
}

function modeReason(flag: ProxyMode | undefined): string {
  return flag === undefined
    ? 'the best mode that this node supports; --proxy-mode is unset'
    : `--proxy-mode=${flag}`;
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
