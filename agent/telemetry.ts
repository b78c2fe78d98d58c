/** What a running agent tells: metrics, the pages of --metrics-bind-address, and Events. */
import type { Logger } from 'pino';
import { flagValues } from '../config/flag-values.ts';
import type { FlagTexts } from '../config/flags.ts';
import { PAGE_GATES } from '../config/map-kinds.ts';
import type { RunOptions } from '../config/settings.ts';
import { toConfiguration } from '../config/write.ts';
import type { NodeCensus } from '../endpoints/node-census.ts';
import { EventRecorder, type Events, NO_EVENTS } from '../events/recorder.ts';
import { watchEventLoop } from '../metrics/event-loop.ts';
import { createMetrics, type MetricSources, type Metrics } from '../metrics/metrics.ts';
import { metricsHandler } from '../metrics/server.ts';
import { serve } from '../process/serve.ts';
import { VERSION } from '../process/version.ts';
import type { RouteTable } from '../proxier/route-table.ts';
import type { OpenSession } from '../sources/kubernetes/session.ts';
import { AgentEvents } from './events.ts';
import type { ModeKind } from './mode.ts';

export interface TelemetryOptions {
  readonly options: RunOptions;
  /** Flags as given, which `/flagz` shows. */
  readonly texts: FlagTexts;
  readonly nodeName: string;
  readonly kind: ModeKind;
  readonly table: RouteTable;
  readonly census: NodeCensus;
  readonly numbers: MetricSources;
  readonly log: Logger;
}

export interface Telemetry {
  readonly metrics: Metrics;
  /** For Events on any object. */
  readonly recorder: Events;
  readonly events: AgentEvents;
  /** Tells how to open sessions for writing Events. */
  connect(open: OpenSession): void;
  stop(): Promise<void>;
}

/** Serves metrics from now on. */
export function startTelemetry(given: TelemetryOptions): Telemetry {
  const { options, texts, nodeName, kind, table, census, numbers, log } = given;
  const { featureGates: gates, metricsBindAddress, bindAddressHardFail: hardFail } = options;
  const isOn = (gate: string) => gates[gate] ?? PAGE_GATES[gate] ?? false;
  const metrics = createMetrics(
    numbers,
    VERSION,
    ['AllPorts', ...Object.keys(PAGE_GATES)].map((name) => ({
      name,
      stage: 'BETA',
      isEnabled: isOn(name),
    })),
  );
  const stopEventLoopWatch = watchEventLoop((seconds) => metrics.stallSeconds.observe(seconds));
  const recorder = new EventRecorder({
    nodeName,
    nodes: () => census.nodes,
    log,
    onDropped: (reason) => metrics.eventsDropped.inc({ reason }),
  });
  const everywhere = options.manifests === undefined ? recorder : NO_EVENTS;
  const events = new AgentEvents(everywhere, nodeName, table);
  events.starting();
  const component = 'portwide';
  const pages = metricsHandler({
    registry: metrics.registry,
    mode: kind.name,
    configuration: () => toConfiguration({ ...options, proxyMode: kind.name }),
    statusz: isOn('ComponentStatusz')
      ? { component, started: performance.timeOrigin, version: VERSION }
      : undefined,
    flagz: isOn('ComponentFlagz') ? { component, flags: flagValues(texts) } : undefined,
  });
  const server =
    metricsBindAddress &&
    serve('--metrics-bind-address', metricsBindAddress, pages, {
      hardFail,
      log,
      onFailure: (error) => events.startFailed('FailedToStartMetricServer', error),
    });
  return {
    metrics,
    recorder: everywhere,
    events,
    connect: (open) => recorder.connect(open),
    stop: async () => {
      await recorder.stop();
      stopEventLoopWatch();
      server?.close();
    },
  };
}
