/** Sets up `portwide dns --forward`: upstream resolvers, their health, the cache, and log lines. */
import type { Logger } from 'pino';
import type { DnsOptions } from '../../config/dns-settings.ts';
import type { Resolver } from '../../dns/exchange.ts';
import { Forwarder } from '../../dns/forward.ts';
import { ForwardCache } from '../../dns/forward-cache.ts';
import { formatResolver } from '../../dns/resolver-address.ts';
import { RELOAD_PERIOD, ResolverList } from '../../dns/resolver-list.ts';
import type { DnsMetrics } from '../../metrics/dns.ts';
import { UserError } from '../../process/errors.ts';
import type { DebugLog } from '../../process/log.ts';
import { RepeatedFailures } from '../../process/repeated-failures.ts';

/**
 * Creates the forwarder, with its cache and its upstream resolvers.
 * @param isSelf whether a resolver is this server, which would be a forwarding loop.
 * @returns undefined if forwarding is disabled.
 * @throws UserError if the resolvers cannot be read.
 */
export async function createForwarding(
  { forward, cacheTtl }: DnsOptions,
  metrics: Pick<DnsMetrics, 'forwarding'>,
  log: Logger,
  isSelf: (resolver: Resolver) => boolean,
) {
  if (forward === undefined) return undefined;
  const list = new ResolverList({
    targets: forward,
    onChange: (resolvers) => {
      log.info({ resolvers: resolvers.map(formatResolver) }, 'upstream resolvers changed');
      forwarder.setResolvers(resolvers);
    },
    onFailure: (file, error) =>
      log.warn(
        { file, err: error },
        'cannot read the upstream resolvers; keeping the previous ones',
      ),
  });
  const resolvers = await list.start().catch((error: Error) => {
    throw new UserError(`--forward: ${error.message}`, { cause: error });
  });
  const cache = new ForwardCache({
    maxTtl: cacheTtl,
    now: () => performance.now() / 1000,
    random: Math.random,
  });
  const { forwarding } = metrics;
  const resolverLog = logResolvers(log);
  const forwarder = new Forwarder({
    resolvers,
    cache,
    isSelf,
    observer: {
      answered: (resolver, rcode, seconds) => {
        forwarding.answered(resolver, rcode, seconds);
        resolverLog.answered(resolver);
      },
      failed: (resolver, error) => {
        forwarding.failed(resolver, error.code);
        resolverLog.failed(resolver, error);
      },
      rejected: forwarding.rejected,
      probeFailed: forwarding.probeFailed,
      probeAnswered: resolverLog.answered,
      allDown: forwarding.allDown,
    },
  });
  reloadPeriodically(list);
  return { forwarder, cache };
}

/**
 * Logs whether resolvers answer. Clients decide what resolvers are asked: one that answers probes but
 * not every query would fill the log.
 * @param now Monotonic clock in milliseconds.
 */
export function logResolvers(log: DebugLog, now?: () => number) {
  const failures = new RepeatedFailures(log, now);
  return {
    answered: (of: Resolver) => {
      const resolver = formatResolver(of);
      failures.succeeded(resolver, { resolver }, 'upstream resolver answers again');
    },
    failed: (of: Resolver, err: Error) => {
      const resolver = formatResolver(of);
      failures.failed(resolver, { resolver, err }, 'upstream resolver does not answer');
    },
  };
}

/** Reloads the files that list resolvers, until the process exits. */
function reloadPeriodically(list: ResolverList): void {
  setTimeout(
    () => void list.reload().finally(() => reloadPeriodically(list)),
    RELOAD_PERIOD,
  ).unref();
}
