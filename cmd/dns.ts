import { setTimeout as sleep } from 'node:timers/promises';
import type { Command } from 'commander';
import type { Logger } from 'pino';
import { createForwarding } from '../agent/dns-forward.ts';
import { checkSource, createSource } from '../agent/source.ts';
import { isLoopback, isUnspecified } from '../api/addresses.ts';
import { IPVS_DEVICE } from '../api/vip-device.ts';
import { configureDns } from '../config/configure-dns.ts';
import { DNS_SETTINGS, type DnsOptions } from '../config/dns-settings.ts';
import { formatNotice } from '../config/errors.ts';
import { addFlags, type FlagTexts } from '../config/flags.ts';
import type { Resolver } from '../dns/exchange.ts';
import type { Forwarder } from '../dns/forward.ts';
import { createHandler } from '../dns/handler.ts';
import { formatResolver } from '../dns/resolver-address.ts';
import { DnsServer } from '../dns/server.ts';
import { singleAddresses, WantedAddresses } from '../dns/wanted-addresses.ts';
import { Zone } from '../dns/zone.ts';
import { createDnsMetrics, type DnsMetrics } from '../metrics/dns.ts';
import { dnsPages } from '../metrics/dns-pages.ts';
import { watchEventLoop } from '../metrics/event-loop.ts';
import type { AddressWatch } from '../netlink/route/address-watch.ts';
import { UserError } from '../process/errors.ts';
import { createLog } from '../process/log.ts';
import { serve } from '../process/serve.ts';
import { stopSignal } from '../process/shutdown.ts';
import { giveSpareMemoryBack } from '../process/spare-memory.ts';
import { VERSION } from '../process/version.ts';
import { dnsResources } from '../sources/kubernetes/resources.ts';

/** Milliseconds for queries under way to be answered: a second more than resolvers get for one. */
const DRAIN_LIMIT = 6000;
/** Milliseconds between two log lines of a mistake that each query may come upon. */
const MISTAKE_PERIOD = 10_000;

export function addDnsCommand(program: Command): void {
  const command = program
    .command('dns')
    .description("answer DNS queries for the cluster's Services until stopped");
  addFlags(command, DNS_SETTINGS).action(run);
}

/**
 * Runs the DNS server until SIGTERM or SIGINT, and answers for `--lameduck` longer.
 * @throws UserError, ConfigurationError and what stands in the way of starting.
 */
async function run(texts: FlagTexts): Promise<void> {
  const { options, warnings } = configureDns(texts);
  const log = createLog(options);
  for (const warning of warnings) {
    log.warn({ setting: warning.subject }, formatNotice(warning));
  }
  await checkSource(options);
  const stopping = stopSignal();
  const { port, clusterDomain: domain } = options;
  const metrics = createDnsMetrics(port, VERSION, {
    tcpConnections: () => server.connections,
    resolvers: () => forwarding?.forwarder.resolvers ?? [],
    cache: () => forwarding?.cache.numbers,
  });
  const stopEventLoopWatch = watchEventLoop((seconds) => metrics.stallSeconds.observe(seconds));
  const zone = new Zone({
    clusterDomain: domain,
    onProblem: ({ object, field, reason }) =>
      log.warn({ object, field, reason }, 'this makes no DNS record'),
    // The clock of the control plane may be ahead.
    onEndpoints: (time) => metrics.programmed(Math.max(0, Date.now() - time) / 1000),
  });
  const isSelf = (resolver: Resolver) =>
    resolver.port === port && server.addresses.includes(resolver.address);
  const forwarding = await createForwarding(options, metrics, log, isSelf);
  const resolvers = forwarding?.forwarder.resolvers.map(({ resolver }) => formatResolver(resolver));
  log.info({ version: VERSION, domain, resolvers }, 'starting');
  const server = createServer(options, zone, forwarding?.forwarder, metrics, log);
  const listening = await listen(options, server, log);
  const { metricsBindAddress } = options;
  let isStopping = false;
  const pages = dnsPages(metrics.registry, () => {
    if (isStopping) return 'stopping';
    return zone.isSynced ? undefined : 'not all Services and EndpointSlices have been listed yet';
  });
  const pageServer =
    metricsBindAddress &&
    serve('--metrics-bind-address', metricsBindAddress, pages, {
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
  const stopMemory = early === undefined ? giveSpareMemoryBack() : undefined;
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
  process.exit(0);
}

function createServer(
  { port, ttl }: DnsOptions,
  zone: Zone,
  forwarder: Forwarder | undefined,
  metrics: DnsMetrics,
  log: Logger,
): DnsServer {
  let lastMistake = Number.NEGATIVE_INFINITY;
  const handle = createHandler({
    authority: {
      zone,
      ttl,
      nameservers: () => server.addresses.filter((address) => !isLoopback(address)),
      random: Math.random,
    },
    forwarder,
    onMistake: (error) => {
      metrics.mistakes.inc();
      const now = performance.now();
      if (now - lastMistake < MISTAKE_PERIOD) return;
      lastMistake = now;
      log.error({ err: error }, 'cannot answer a query');
    },
  });
  const server = new DnsServer({ port, handle, onServed: metrics.served });
  return server;
}

/** What failed and what to do. */
export function cannotListen(address: string, port: number, error: Error): string {
  const code = 'code' in error ? String(error.code) : error.message;
  return `cannot listen on ${address}, port ${port} (${code}): ${listenAdvice(code, port)}`;
}

function listenAdvice(code: string, port: number): string {
  switch (code) {
    case 'EACCES':
      return 'ports below 1024 need CAP_NET_BIND_SERVICE: run it as root, in a pod with NET_BIND_SERVICE in securityContext.capabilities.add, or choose another --port';
    case 'EADDRINUSE':
      return `another process has this port (\`ss -lnp sport = :${port}\` shows it); end it, or choose another --port or --bind-address`;
    case 'EADDRNOTAVAIL':
      return 'it is no address of this host; choose another --bind-address';
    default:
      return 'choose another --port or --bind-address';
  }
}

/**
 * Listens from now on. Where `0.0.0.0` or `::` is asked for, the addresses of the host are followed.
 * @throws UserError when an address that was named cannot be listened on, or none at all.
 */
async function listen(
  { bindAddress, port }: DnsOptions,
  server: DnsServer,
  log: Logger,
): Promise<AddressWatch> {
  const wanted = new WantedAddresses({
    server,
    onFailure: (address, error) =>
      log.warn({ address, port, err: error }, 'cannot listen; trying again'),
    onRecovery: (address) => log.info({ address, port }, 'listening now'),
  });
  let watch: AddressWatch | undefined;
  if (!bindAddress.some(isUnspecified)) await wanted.set(bindAddress);
  else {
    let first: Promise<void> | undefined;
    const { watchAddresses } = await import('../netlink/route/address-watch.ts');
    watch = await watchAddresses(
      (ofHost) => {
        const addresses = singleAddresses(
          bindAddress,
          ofHost.map(({ address }) => address),
        );
        const settled = wanted.set(addresses);
        first ??= settled;
      },
      {
        // VIPs that another mode's agent bound are no addresses of the host.
        ignoredLink: IPVS_DEVICE,
        onError: (error) => log.error({ err: error }, 'cannot read the addresses of this host'),
      },
    );
    await first;
  }
  const failed = [...wanted.failing];
  const named = failed.find(([address]) => bindAddress.includes(address));
  const [address, error] = named ?? failed[0] ?? ['any address', undefined];
  if (named !== undefined || server.addresses.length === 0) {
    const message =
      error === undefined
        ? `--bind-address=${bindAddress.join()}: this host has no address to listen on`
        : cannotListen(address, port, error);
    throw new UserError(message, { cause: error });
  }
  log.info({ addresses: server.addresses, port }, 'listening');
  return {
    close: async () => {
      wanted.close();
      await watch?.close();
    },
  };
}
