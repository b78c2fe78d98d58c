/** Starts and stops the parts of `portwide dns`. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from 'pino';
import { isLoopback } from '../../api/addresses.ts';
import type { DnsOptions } from '../../config/dns-settings.ts';
import { createHandler } from '../../dns/handler.ts';
import { formatResolver } from '../../dns/resolver-address.ts';
import { DnsServer } from '../../dns/server.ts';
import { Zone } from '../../dns/zone.ts';
import { createDnsMetrics } from '../../metrics/dns.ts';
import { dnsPages } from '../../metrics/dns-pages.ts';
import { watchEventLoop } from '../../metrics/event-loop.ts';
import { releaseFreeMemory } from '../../process/free-memory.ts';
import { startHttpServer } from '../../process/serve.ts';
import { stopSignal } from '../../process/shutdown.ts';
import { VERSION } from '../../process/version.ts';
import { dnsResources } from '../../sources/kubernetes/resources.ts';
import { checkSource, createSource } from '../source.ts';
import { createForwarding } from './forward.ts';
import { listen } from './listen.ts';

/** Milliseconds to drain pending queries: a second more than the deadline of a forwarded query. */
const DRAIN_LIMIT = 6000;
/** Rate limit of log lines about internal errors, which every query may hit: milliseconds between two lines. */
const ERROR_LOG_PERIOD = 10_000;

/**
 * Runs the DNS server until SIGTERM or SIGINT, and for `--lameduck` after the signal.
 * @throws UserError if the server cannot start.
 */
export async function runDnsServer(options: DnsOptions, log: Logger): Promise<void> {
  await checkSource(options);
  const stopping = stopSignal();
  const { port, clusterDomain: domain, ttl, metricsBindAddress } = options;
  const metrics = createDnsMetrics(port, VERSION);
  const stopEventLoopWatch = watchEventLoop((seconds) => metrics.stallSeconds.observe(seconds));
  const zone = new Zone({
    clusterDomain: domain,
    onProblem: ({ object, field, reason }) =>
      log.warn(
        { object, field, reason },
        'a DNS record is missing, because its name or target is invalid',
      ),
    // The control plane's clock may be ahead.
    onEndpoints: (time) => metrics.programmed(Math.max(0, Date.now() - time) / 1000),
  });
  const addresses = new Set<string>();
  const forwarding = await createForwarding(
    options,
    metrics,
    log,
    (resolver) => resolver.port === port && addresses.has(resolver.address),
  );
  const { forwarder, cache } = forwarding ?? {};
  const resolvers = forwarder?.resolvers.map(({ resolver }) => formatResolver(resolver));
  log.info({ version: VERSION, domain, resolvers }, 'starting');
  let lastErrorLog = Number.NEGATIVE_INFINITY;
  const handle = createHandler({
    authority: {
      zone,
      ttl,
      nameservers: () => [...addresses].filter((address) => !isLoopback(address)),
      random: Math.random,
    },
    forwarder,
    onInternalError: (error) => {
      metrics.internalErrors.inc();
      const now = performance.now();
      if (now - lastErrorLog < ERROR_LOG_PERIOD) return;
      lastErrorLog = now;
      log.error({ err: error }, 'internal error while answering a query');
    },
  });
  const server = new DnsServer({ port, handle, onServed: metrics.served, addresses });
  metrics.collectFrom({
    tcpConnections: () => server.connections,
    resolvers: () => forwarder?.resolvers ?? [],
    cache: () => cache?.stats,
  });
  const listening = await listen(options, server, log);
  let isStopping = false;
  const pages = dnsPages(metrics.registry, () => {
    if (isStopping) return 'stopping';
    return zone.isSynced ? undefined : 'waiting for the first list of Services and EndpointSlices';
  });
  const pageServer =
    metricsBindAddress &&
    startHttpServer('--metrics-bind-address', metricsBindAddress, pages, {
      hardFail: false,
      log,
      onFailure: () => {},
    });
  const source = createSource({
    options,
    resources: dnsResources(),
    sink: zone,
    log,
    observer: metrics.api,
  });
  const earlySignal = await Promise.race([source.start(), stopping]);
  // The first lists leave several times their size as garbage.
  const stopMemory = earlySignal === undefined ? releaseFreeMemory() : undefined;
  if (earlySignal === undefined) {
    const { services, slices, names } = zone.sizes;
    log.info({ services, slices, names }, 'serving');
  }

  const signal = await stopping;
  isStopping = true;
  // Before the first lists the server was not ready, and no client was sent to it.
  if (earlySignal === undefined && options.lameduck > 0) {
    log.info({ signal, lameduckMs: options.lameduck }, 'no longer ready; still answering queries');
    await sleep(options.lameduck);
  }
  log.info({ signal }, 'stopping');
  await listening.close();
  await server.drain(DRAIN_LIMIT);
  if (earlySignal === undefined) await source.stop();
  stopEventLoopWatch();
  stopMemory?.();
  pageServer?.close();
}
