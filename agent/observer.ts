/** What the proxier does, in the log, in metrics, in Events and in health. */
import type { Logger } from 'pino';
import type { IpFamily } from '../api/objects.ts';
import { IptablesError } from '../iptables/commands.ts';
import type { NodePortProxy } from '../localhost/node-port-proxy.ts';
import type { Metrics } from '../metrics/metrics.ts';
import { NftRefusedError } from '../netlink/nftables/tables.ts';
import { NftError } from '../nft/command.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import { ProgramTimeoutError } from '../process/run-program.ts';
import type { ProxierObserver } from '../proxier/proxier.ts';
import type { RefusalChanges } from '../proxier/route-table.ts';
import type { AgentHealth } from './health.ts';

interface ObserverOptions {
  readonly log: Logger;
  readonly metrics: Metrics;
  readonly health: Pick<AgentHealth, 'queued' | 'updated' | 'servicesChanged' | 'setNodeFacts'>;
  readonly localhostNodePorts: Pick<NodePortProxy, 'update'>;
  /** Tells the Services' owners. */
  readonly onRefusals: (changes: RefusalChanges) => void;
  /** Called once for each family. */
  readonly onFirstSync: (family: IpFamily) => void;
  /** Monotonic clock in milliseconds. */
  readonly now?: () => number;
}

/** Turns what the proxier does into log lines, metrics, Events and health. */
export function createObserver(options: ObserverOptions): ProxierObserver {
  const { log, metrics, health, localhostNodePorts, onRefusals: tell, onFirstSync } = options;
  const known = new Set<IpFamily>();
  const syncs = new RepeatedFailures(log, options.now);
  const checks = new RepeatedFailures(log, options.now);
  const flows = new RepeatedFailures(log, options.now);
  const inForce = (family: IpFamily, triggerTimes: readonly number[]) => {
    const now = Date.now();
    for (const time of triggerTimes) {
      // The clock of the control plane may be ahead.
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
        log.warn({ service: serviceKey, reason, field }, `Service is not served: ${message}`);
      }
      for (const { serviceKey, reason, field } of changes.cleared) {
        log.info({ service: serviceKey, reason, field }, 'Service is no longer refused for this');
      }
      for (const { serviceKey, sliceKey, message } of changes.warnings) {
        const slice = sliceKey === undefined ? {} : { endpointSlice: sliceKey };
        log.warn({ service: serviceKey, ...slice }, message);
      }
      tell(changes);
    },
    nodeAddresses: (family, facts) => health.setNodeFacts(family, facts),
    queued(family) {
      health.queued(family);
      metrics.lastQueued.setToCurrentTime({ ip_family: family });
    },
    unchanged(family, triggerTimes) {
      health.updated(family);
      // As good as a sync: whoever compares the two timestamps looks for one that hangs.
      metrics.lastSync.setToCurrentTime({ ip_family: family });
      inForce(family, triggerTimes);
    },
    synced(report) {
      health.updated(report.family);
      health.servicesChanged(report.health);
      localhostNodePorts.update(report.localhostNodePorts);
      const { family, full, seconds, written, deletedFlows, flowError } = report;
      const labels = { ip_family: family };
      observeSync(family, full, seconds);
      metrics.applySeconds.observe(labels, report.applySeconds);
      metrics.lastSync.setToCurrentTime(labels);
      inForce(family, report.triggerTimes);
      for (const [table, rules] of report.rulesWritten ?? []) {
        metrics.rulesWritten.set({ ...labels, table }, rules);
      }
      if (report.flowSeconds !== undefined) {
        metrics.conntrackSeconds.observe(labels, report.flowSeconds);
      }
      metrics.conntrackDeleted.inc(labels, deletedFlows);
      log.debug({ family, full, seconds, written, deletedFlows }, 'synced');
      syncs.succeeded(family, { family }, 'syncs succeed again');
      if (!known.has(family)) {
        log.info({ family, seconds, written }, 'serving');
        onFirstSync(family);
      } else if (full && written > 0 && !report.changed) {
        log.warn({ family, written }, 'wrote rules that the kernel lacked');
      }
      known.add(family);
      if (flowError !== undefined) {
        const details = { family, err: flowError };
        flows.failed(family, details, 'cannot delete stale conntrack entries; trying again later');
      } else if (report.flowSeconds !== undefined) {
        flows.succeeded(family, { family }, 'stale conntrack entries can be deleted again');
      }
    },
    syncFailed(family, error, { full, seconds }) {
      const labels = { ip_family: family };
      observeSync(family, full, seconds);
      const program = failedProgram(error);
      if (program?.endsWith('-restore') === true) {
        metrics.restoreFailures.inc(labels);
        if (!full) metrics.partialRestoreFailures.inc(labels);
      }
      if (program === 'nft' || error instanceof NftRefusedError) {
        metrics.nftSyncFailures.inc(labels);
      }
      syncs.failed(
        family,
        { family, err: error },
        'sync failed; the rules stay as they were, trying again',
      );
    },
    checkFailed(family, error) {
      checks.failed(family, { family, err: error }, 'cannot tell whether the rules still stand');
    },
    checked(family) {
      checks.succeeded(family, { family }, 'the rules can be checked again');
    },
    driftDetected(family, what) {
      log.warn({ family, what }, `somebody changed our rules (${what}); writing them again`);
    },
  };
}

/** The program whose failure made a sync fail. */
function failedProgram(error: unknown): string | undefined {
  if (error instanceof IptablesError) return error.command;
  if (error instanceof ProgramTimeoutError) return error.program;
  return error instanceof NftError ? 'nft' : undefined;
}
