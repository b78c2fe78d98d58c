/** Sets up DNS snooping for FQDN policies: trusted resolvers and log lines. */
import type { Logger } from 'pino';
import type { RunOptions } from '../config/settings.ts';
import type { PolicyKernel } from '../policy/enforce/kernel.ts';
import { FQDN_CACHE_DEFAULTS } from '../policy/fqdn/cache.ts';
import { DnsSnooper, type DnsSnooperObserver } from '../policy/fqdn/dns-snooper.ts';
import type { DebugLog } from '../process/log.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import type { ObjectSink } from '../sources/source.ts';
import { systemTimers } from '../sync/timers.ts';

/** The cluster's DNS Service. CoreDNS kept the name of kube-dns. */
const CLUSTER_DNS = 'kube-system/kube-dns';

type FqdnOptions = Pick<RunOptions, 'fqdnResolvers' | 'fqdnTtlFloor' | 'fqdnTtlCap'>;

/** Creates the DNS snooper. It trusts the resolvers of `--fqdn-resolvers`; if unset, see `clusterDnsSink`. */
export function createDnsSnooper(
  store: PolicyKernel,
  options: FqdnOptions,
  log: Logger,
): DnsSnooper {
  const snooper = new DnsSnooper({
    store,
    observer: createSnooperObserver(log),
    timers: systemTimers,
    cache: { ...FQDN_CACHE_DEFAULTS, floor: options.fqdnTtlFloor, cap: options.fqdnTtlCap },
  });
  snooper.prestart();
  snooper.setResolvers(new Set(options.fqdnResolvers));
  return snooper;
}

/**
 * Logs failures. DNS messages can cause some of them many times a second; the others come after a
 * backoff.
 */
export function createSnooperObserver(log: DebugLog, now?: () => number): DnsSnooperObserver {
  const failures = new RepeatedFailures(log, now);
  return {
    addFailed: (err) =>
      failures.failed('add', { err }, 'cannot allow the resolved addresses of a domain name'),
    removeFailed: (err) =>
      failures.failed('remove', { err }, 'cannot remove evicted addresses of domain names'),
    queueFailed: (err) =>
      log.error(
        { err },
        'cannot queue DNS responses; domain names in policies match no new addresses',
      ),
    answersForged: (count) =>
      log.warn(
        { count, effect: 'their addresses stay denied' },
        'DNS responses arrived on another interface than the route back to the resolver',
      ),
    threadFailed: (err) =>
      log.error(
        { err, effect: 'domain names in policies match no new addresses until the restart' },
        'thread that reads DNS responses failed; restarting it',
      ),
    packetFailed: (err) =>
      failures.failed(
        'packet',
        { err, effect: 'its addresses may be missing from domain names in policies' },
        'cannot inspect a DNS packet',
      ),
  };
}

/** A sink that makes the snooper trust the cluster IPs of the cluster's DNS Service. */
export function clusterDnsSink(snooper: DnsSnooper): ObjectSink {
  return {
    upsert(object) {
      if (object.kind !== 'Service' || object.key !== CLUSTER_DNS) return;
      snooper.setResolvers(new Set(object.clusterIPs));
    },
    remove(kind, key) {
      if (kind === 'Service' && key === CLUSTER_DNS) snooper.setResolvers(new Set());
    },
    synced() {},
  };
}
