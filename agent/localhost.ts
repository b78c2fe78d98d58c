/** Node ports on loopback addresses, served by the agent's userspace proxy. */
import type { IpFamily, ObjectKey } from '../api/objects.ts';
import { NodePortProxy } from '../localhost/node-port-proxy.ts';
import type { Metrics } from '../metrics/metrics.ts';
import type { DebugLog } from '../process/log.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import { systemTimers } from '../sync/timers.ts';

/** Drain period of proxied connections at the agent's exit, in milliseconds. */
export const LOCALHOST_DRAIN = 5000;

/**
 * Serves node ports on the loopback addresses of the given families, where rules cannot. A port that cannot be bound is
 * logged, recorded as an Event, and retried.
 */
export function localhostNodePorts(
  families: readonly IpFamily[],
  metrics: Pick<Metrics, 'localhostListenFailures' | 'localhostConnections'>,
  log: DebugLog,
  onFailure: (service: ObjectKey, message: string) => void,
): NodePortProxy {
  const failures = new RepeatedFailures(log);
  for (const family of families) {
    metrics.localhostListenFailures.inc({ ip_family: family }, 0);
    for (const result of ['forwarded', 'failed'])
      metrics.localhostConnections.inc({ ip_family: family, result }, 0);
  }
  return new NodePortProxy({
    families,
    timers: systemTimers,
    onBindFailure: ({ id, serviceKey: service, family, port }, error) => {
      const details = { service, family, port, err: error };
      const message = 'cannot serve node port on localhost; retrying';
      if (!failures.failed(id, details, message)) return;
      metrics.localhostListenFailures.inc({ ip_family: family });
      onFailure(service, `node port ${port} cannot be served on localhost: ${error.message}`);
    },
    onBindRecovery: ({ id, serviceKey: service, family, port }) =>
      failures.succeeded(id, { service, family, port }, 'node port served on localhost'),
    onBindAbandoned: ({ id, serviceKey: service, family, port }) =>
      failures.succeeded(id, { service, family, port }, 'node port on localhost removed'),
    onConnection: ({ family }, isForwarded) =>
      metrics.localhostConnections.inc({
        ip_family: family,
        result: isForwarded ? 'forwarded' : 'failed',
      }),
  });
}
