import type { Logger } from 'pino';
import type { IpFamily } from '../api/objects.ts';
import { IptablesError } from '../iptables/commands.ts';
import type { Metrics } from '../metrics/metrics.ts';
import type { ProxierObserver } from '../proxier/proxier.ts';
import type { AgentHealth } from './health.ts';

/**
 * Turns what the proxier does into log lines, metrics and health.
 * @param onFirstSync called once for each family.
 */
export function createObserver(
  log: Logger,
  metrics: Metrics,
  health: AgentHealth,
  onFirstSync: (family: IpFamily) => void,
): ProxierObserver {
  const known = new Set<IpFamily>();
  return {
    refusals({ raised, cleared, warnings }) {
      for (const { serviceKey, reason, field, message } of raised) {
        log.warn({ service: serviceKey, reason, field }, `Service is not served: ${message}`);
      }
      for (const { serviceKey, reason, field } of cleared) {
        log.info({ service: serviceKey, reason, field }, 'Service is no longer refused for this');
      }
      for (const { serviceKey, message } of warnings) log.warn({ service: serviceKey }, message);
    },
    nodeFacts: (family, facts) => health.setNodeFacts(family, facts),
    queued: (family) => health.queued(family),
    unchanged: (family) => health.updated(family),
    synced({ family, full, seconds, written, forgottenFlows, flowError, health: services }) {
      health.updated(family);
      health.servicesChanged(services);
      metrics.syncSeconds.observe({ ip_family: family }, seconds);
      metrics.lastSync.setToCurrentTime({ ip_family: family });
      log.debug({ family, full, seconds, written, forgottenFlows }, 'synced');
      if (!known.has(family)) {
        log.info({ family, seconds, written }, 'serving');
        onFirstSync(family);
      } else if (full && written > 0)
        log.warn({ family, written }, 'wrote rules that the kernel lacked');
      known.add(family);
      if (flowError !== undefined) {
        log.warn({ family, err: flowError }, 'cannot forget stale UDP flows; trying again later');
      }
    },
    syncFailed(family, error) {
      if (error instanceof IptablesError) metrics.restoreFailures.inc({ ip_family: family });
      log.error({ family, err: error }, 'sync failed; the rules stay as they were, trying again');
    },
    checkFailed(family, error) {
      log.warn({ family, err: error }, 'cannot tell whether the rules still stand');
    },
    rulesLost(family) {
      log.warn({ family }, 'somebody removed our rules; writing them again');
    },
  };
}
