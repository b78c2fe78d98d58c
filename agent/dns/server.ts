/** `portwide dns`: its parts, in the order in which they are made and stopped. */
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

/** Milliseconds for queries under way to be answered: a second more than resolvers get for one. */
const DRAIN_LIMIT = 6000;
/** Milliseconds between two log lines of a mistake that each query may come upon. */
const MISTAKE_PERIOD = 10_000;

/**
 * Runs the DNS server until SIGTERM or SIGINT, and answers for `--lameduck` longer.
 * @throws UserError and what else stands in the way of starting.
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
      log.warn({ object, field, reason }, 'this makes no DNS record'),
    // The clock of the control plane may be ahead.
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
  let lastMistake = Number.NEGATIVE_INFINITY;
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
      if (now - lastMistake < MISTAKE_PERIOD) return;
      lastMistake = now;
      log.error({ err: error }, 'cannot answer a query');
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
    return zone.isSynced ? undefined : 'not all Services and EndpointSlices have been listed yet';
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
  const early = await Promise.race([source.start(), stopping]);
  // The first lists leave garbage of several times what is kept of them.
  const stopMemory = early === undefined ? releaseFreeMemory() : undefined;
  if (early === undefined) log.info({ ...zone.sizes }, 'serving');

  const signal = await stopping;
  isStopping = true;
  // Nobody was sent here before.
  if (early === undefined && options.lameduck > 0) {
    log.info({ signal, lameduckMs: options.lameduck }, 'not ready any more; still answering');
    await sleep(options.lameduck);
  }
  log.info({ signal }, 'stopping');
  await listening.close();
  await server.drain(DRAIN_LIMIT);
  if (early === undefined) await source.stop();
  stopEventLoopWatch();
  stopMemory?.();
  pageServer?.close();
}
