/** Metrics, the pages of --metrics-bind-address, and Events of a running agent. */

import { FEATURE_GATES, PAGE_GATES } from '../config/feature-gates.ts';
import { flagValues } from '../config/flag-values.ts';
import { toConfiguration } from '../config/write.ts';
import { EventRecorder, NO_EVENTS } from '../events/recorder.ts';
import { watchEventLoop } from '../metrics/event-loop.ts';
import { createMetrics } from '../metrics/metrics.ts';
import { metricsHandler } from '../metrics/server.ts';
import { startHttpServer } from '../process/serve.ts';
import { VERSION } from '../process/version.ts';
import type { OpenSession } from '../sources/kubernetes/session.ts';
import type { AgentContext, ObjectContext } from './context.ts';
import { AgentEvents } from './events.ts';
import type { AgentMetricSources } from './metric-sources.ts';

/** Starts serving metrics and recording Events. */
export function startTelemetry(objects: ObjectContext, metricSources: AgentMetricSources) {
  const { options, texts, nodeName, modeDefinition, table, nodeCounter, log } = objects;
  const { featureGates: gates, metricsBindAddress, bindAddressHardFail: hardFail } = options;
  const isOn = (gate: string) => gates[gate] ?? PAGE_GATES[gate] ?? false;
  const metrics = createMetrics(
    metricSources,
    VERSION,
    [...Object.keys(FEATURE_GATES), ...Object.keys(PAGE_GATES)].map((name) => ({
      name,
      stage: name === 'AllowServiceExternalIPs' ? 'DEPRECATED' : 'BETA',
      isEnabled: isOn(name),
    })),
  );
  const stopEventLoopWatch = watchEventLoop((seconds) => metrics.stallSeconds.observe(seconds));
  const recorder = new EventRecorder({
    nodeName,
    nodes: () => nodeCounter.nodes,
    log,
    onDropped: (reason) => metrics.eventsDropped.inc({ reason }),
  });
  // With --manifests there is no API server for Events.
  const usedRecorder = objects.status.events.observing(
    options.manifests === undefined ? recorder : NO_EVENTS,
  );
  const events = new AgentEvents(usedRecorder, nodeName, table);
  events.starting();
  const { warning } = modeDefinition;
  if (warning !== undefined) events.modeWarning(warning);
  metrics.modeFallback.set(warning?.reason === 'ProxyModeFallback' ? 1 : 0);
  const component = 'portwide';
  const pages = metricsHandler({
    registry: metrics.registry,
    mode: modeDefinition.name,
    configuration: () => toConfiguration({ ...options, proxyMode: modeDefinition.name }),
    statusz: isOn('ComponentStatusz')
      ? { component, started: performance.timeOrigin, version: VERSION }
      : undefined,
    flagz: isOn('ComponentFlagz') ? { component, flags: flagValues(texts) } : undefined,
  });
  const server =
    metricsBindAddress &&
    startHttpServer('--metrics-bind-address', metricsBindAddress, pages, {
      hardFail,
      log,
      onFailure: (error) => events.startFailed('FailedToStartMetricServer', error),
    });
  const context: AgentContext = {
    ...objects,
    metricSources,
    metrics,
    events,
    recorder: usedRecorder,
  };
  return {
    context,
    /** Starts writing Events to the API server. */
    connect: (open: OpenSession) => recorder.connect(open),
    stop: async () => {
      await recorder.stop();
      stopEventLoopWatch();
      server?.close();
    },
  };
}
