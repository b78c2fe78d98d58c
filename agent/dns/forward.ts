/** What `portwide dns --forward` is made of: the resolvers, their health, the cache, and what is told of them. */
import type { Logger } from 'pino';
import type { DnsOptions } from '../../config/dns-settings.ts';
import type { Resolver } from '../../dns/exchange.ts';
import { Forwarder } from '../../dns/forward.ts';
import { ForwardCache } from '../../dns/forward-cache.ts';
import { formatResolver } from '../../dns/resolver-address.ts';
import { RELOAD_PERIOD, ResolverList } from '../../dns/resolver-list.ts';
import type { DnsMetrics } from '../../metrics/dns.ts';
import { UserError } from '../../process/errors.ts';

/**
 * @param isSelf whether a resolver is the server itself.
 * @returns undefined when nothing is forwarded.
 * @throws UserError (a rejection)
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
      log.info({ resolvers: resolvers.map(formatResolver) }, 'the resolvers have changed');
      forwarder.setResolvers(resolvers);
    },
    onFailure: (file, error) =>
      log.warn({ file, err: error }, 'cannot read the resolvers; keeping those from before'),
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
  const away = new Set<string>();
  const answers = (resolver: Resolver) => {
    const name = formatResolver(resolver);
    if (away.delete(name)) log.info({ resolver: name }, 'the resolver answers again');
  };
  const forwarder = new Forwarder({
    resolvers,
    cache,
    isSelf,
    observer: {
      answered: (resolver, rcode, seconds) => {
        forwarding.answered(resolver, rcode, seconds);
        answers(resolver);
      },
      failed: (resolver, error) => {
        forwarding.failed(resolver, error.code);
        const name = formatResolver(resolver);
        if (away.has(name)) return;
        away.add(name);
        log.warn({ resolver: name, err: error }, 'a resolver does not answer');
      },
      rejected: forwarding.rejected,
      probeFailed: forwarding.probeFailed,
      probeAnswered: answers,
      allDown: forwarding.allDown,
    },
  });
  followFiles(list);
  return { forwarder, cache };
}

/** For as long as the process lives. */
function followFiles(list: ResolverList): void {
  setTimeout(() => void list.reload().finally(() => followFiles(list)), RELOAD_PERIOD).unref();
}
