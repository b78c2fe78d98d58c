/** Reports the proxier's activity as log lines, metrics, Events and health. */
import type { Logger } from 'pino';
import type { IpFamily } from '../api/objects.ts';
import { IptablesError } from '../iptables/commands.ts';
import type { NodePortProxy } from '../localhost/node-port-proxy.ts';
import type { Metrics } from '../metrics/metrics.ts';
import { NftRefusedError } from '../netlink/nftables/tables.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import { ProgramTimeoutError } from '../process/run-program.ts';
import type { ProxierObserver } from '../proxier/proxier.ts';
import type { RefusalChanges } from '../proxier/route-table.ts';
import type { AgentHealth } from './health.ts';

interface ObserverOptions {
  readonly log: Logger;
  readonly metrics: Metrics;
  readonly health: Pick<AgentHealth, 'queued' | 'updated' | 'servicesChanged' | 'setNodeAddresses'>;
  readonly localhostNodePorts: Pick<NodePortProxy, 'update'>;
  /** Records Events about refusals and warnings on the Services. */
  readonly onRefusals: (changes: RefusalChanges) => void;
  /** Called once for each family, after its first sync. */
  readonly onFirstSync: (family: IpFamily) => void;
  /** Monotonic clock in milliseconds. */
  readonly now?: () => number;
}

export function createObserver(options: ObserverOptions): ProxierObserver {
  const { log, metrics, health, localhostNodePorts, onRefusals, onFirstSync } = options;
  const syncedFamilies = new Set<IpFamily>();
  const syncs = new RepeatedFailures(log, options.now);
  const checks = new RepeatedFailures(log, options.now);
  const flows = new RepeatedFailures(log, options.now);
  const observeProgramming = (family: IpFamily, triggerTimes: readonly number[]) => {
    const now = Date.now();
    for (const time of triggerTimes) {
      // The control plane's clock may be ahead.
      const seconds = Math.max(0, now - time) / 1000;
      metrics.networkProgrammingSeconds.observe({ ip_family: family }, seconds);
    }
  };
  const observeSync = (family: IpFamily, full: boolean, seconds: number) => {
    const labels = { ip_family: family };
    metrics.syncSeconds.observe(labels, seconds);
    (full ? metrics.fullSyncSeconds : metrics.partialSyncSeconds).observe(labels, seconds);
  };

  return {
    refusals(changes) {
      for (const { serviceKey, reason, field, message } of changes.raised) {
        log.warn({ service: serviceKey, reason, field, message }, 'Service is not served');
      }
      for (const { serviceKey, reason, field } of changes.cleared) {
        log.info(
          { service: serviceKey, reason, field },
          'Service is no longer refused for this reason',
        );
      }
      for (const { serviceKey, sliceKey, message } of changes.warnings) {
        const slice = sliceKey === undefined ? {} : { endpointSlice: sliceKey };
        log.warn({ service: serviceKey, ...slice, message }, 'Service is served with a warning');
      }
      onRefusals(changes);
    },
    nodeAddresses: (family, addresses) => health.setNodeAddresses(family, addresses),
    queued(family) {
      health.queued(family);
      metrics.lastQueued.setToCurrentTime({ ip_family: family });
    },
    unchanged(family, triggerTimes) {
      health.updated(family);
      // Counts as a sync: alerts compare the two timestamps to find a sync that hangs.
      metrics.lastSync.setToCurrentTime({ ip_family: family });
      observeProgramming(family, triggerTimes);
    },
    synced(report) {
      health.updated(report.family);
      health.servicesChanged(report.healthChanges);
      localhostNodePorts.update(report.localhostNodePorts);
      const { family, full, seconds, written, deletedFlows, conntrackError } = report;
      const labels = { ip_family: family };
      observeSync(family, full, seconds);
      metrics.applySeconds.observe(labels, report.applySeconds);
      metrics.lastSync.setToCurrentTime(labels);
      observeProgramming(family, report.triggerTimes);
      for (const [table, rules] of report.rulesWritten ?? []) {
        metrics.rulesWritten.set({ ...labels, table }, rules);
      }
      if (report.conntrackSeconds !== undefined) {
        metrics.conntrackSeconds.observe(labels, report.conntrackSeconds);
      }
      metrics.conntrackDeleted.inc(labels, deletedFlows);
      log.debug({ family, full, seconds, written, deletedFlows }, 'synced');
      syncs.succeeded(family, { family }, 'syncs succeed again');
      if (!syncedFamilies.has(family)) {
        log.info({ family, seconds: Number(seconds.toFixed(3)), written }, 'serving');
        onFirstSync(family);
      } else if (full && written > 0 && !report.changed) {
        log.warn({ family, written }, 'resync repaired external changes of the rules');
      }
      syncedFamilies.add(family);
      if (conntrackError !== undefined) {
        const details = { family, err: conntrackError };
        flows.failed(family, details, 'cannot delete stale conntrack entries; retrying');
      } else if (report.conntrackSeconds !== undefined) {
        flows.succeeded(family, { family }, 'stale conntrack entries can be deleted again');
      }
    },
    syncFailed(family, error, { full, seconds }) {
      const labels = { ip_family: family };
      observeSync(family, full, seconds);
      if (failedProgram(error)?.endsWith('-restore') === true) {
        metrics.restoreFailures.inc(labels);
        if (!full) metrics.partialRestoreFailures.inc(labels);
      }
      if (error instanceof NftRefusedError) metrics.nftSyncFailures.inc(labels);
      syncs.failed(
        family,
        { family, err: error },
        'sync failed; keeping the current rules and retrying',
      );
    },
    checkFailed(family, error) {
      checks.failed(family, { family, err: error }, 'cannot check the rules for external changes');
    },
    checked(family) {
      checks.succeeded(family, { family }, 'rules can be checked for external changes again');
    },
    driftDetected(family, change) {
      log.warn({ family, change }, 'rules were changed by another program; restoring them');
    },
  };
}

/** The program that made a sync fail; undefined if no program did. */
function failedProgram(error: unknown): string | undefined {
  if (error instanceof IptablesError) return error.command;
  if (error instanceof ProgramTimeoutError) return error.program;
  return undefined;
}
