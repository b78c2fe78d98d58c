/** Sets up network policy in a running agent. */
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { IP_FAMILIES, type IpFamily, type Kind } from '../api/objects.ts';
import type { RunOptions } from '../config/settings.ts';
import type { Events } from '../events/recorder.ts';
import { metricDefiner } from '../metrics/define.ts';
import { policyMetrics } from '../metrics/policy.ts';
import type { NftMonitor } from '../nft/monitor.ts';
import { AppliedState } from '../policy/compile/applied-state.ts';
import { policyProbe } from '../policy/compile/policy-table.ts';
import { Enforcer } from '../policy/enforce/enforcer.ts';
import { PolicyKernel } from '../policy/enforce/kernel.ts';
import { isModelKind, isModelObject, MODEL_KINDS, PolicyModel } from '../policy/model/model.ts';
import type { ListId } from '../policy/model/terms.ts';
import { UserError } from '../process/errors.ts';
import { fanOut, type ObjectSink } from '../sources/source.ts';
import { PolicyActivity } from '../status/policy-activity.ts';
import type { SyncActivity } from '../status/sync-activity.ts';
import { systemTimers } from '../sync/timers.ts';
import { nftablesSupport } from './nftables-support.ts';
import { clusterDnsSink, createDnsSnooper } from './policy-fqdn.ts';
import { policyMetricSources } from './policy-metrics.ts';
import { createPolicyObserver, reportPolicyFaults } from './policy-observer.ts';
import { ownedVipsSink } from './policy-owned-vips.ts';

/** The node's support for network policy. Nothing is programmed yet. */
export interface PolicySupport {
  readonly families: readonly IpFamily[];
}

/**
 * Checks that the node supports network policy. Unlike a proxy mode, it must work for every IP family that is
 * enabled on the node, because traffic of an omitted family would not be restricted.
 * @throws UserError that names what is missing.
 */
export async function requirePolicySupport({
  policyLogGroup: logGroup,
}: RunOptions): Promise<PolicySupport> {
  const { families, missing } = await nftablesSupport((family) =>
    policyProbe({ family, logGroup }),
  );
  const problems = IP_FAMILIES.flatMap((family) => {
    const reason = missing.get(family);
    return reason === undefined ? [] : [`${family}: ${reason}`];
  });
  if (problems.length > 0) {
    throw new UserError(`--network-policy does not work on this node: ${problems.join('; ')}`);
  }
  return { families };
}

export interface PolicyOptions {
  readonly support: PolicySupport;
  readonly options: RunOptions;
  readonly nodeName: string;
  readonly monitor: NftMonitor;
  readonly registry: Registry;
  readonly log: Logger;
  readonly events: Events;
  readonly status: { readonly syncs: SyncActivity };
  /** Number of unreadable objects by kind. */
  readonly unreadable: () => ReadonlyMap<string, number>;
}

/** Network policy in a running agent. */
export type PolicyAgent = ReturnType<typeof startPolicy>;

/** Starts network policy. Enforcement starts after the first lists of `MODEL_KINDS`. @throws NetlinkError */
export function startPolicy(given: PolicyOptions) {
  const { support, options, nodeName, monitor, log, events } = given;
  const kernel = new PolicyKernel({
    ...support,
    logGroup: options.policyLogGroup,
    onWarning: (family, message, details) => log.warn({ family, ...details }, message),
  });
  const snooper = createDnsSnooper(kernel, options, log);
  const model = new PolicyModel({ nodeName });
  const applied = new AppliedState(model, support.families);
  const metrics = policyMetrics(
    metricDefiner(given.registry),
    policyMetricSources({ ...given, model, applied, snooper, kernel }),
    support.families,
  );
  const activity = new PolicyActivity(given.status.syncs);
  const unenforced = new Set(support.families);
  const enforced = Promise.withResolvers<void>();
  const observer = createPolicyObserver({
    ...{ log, metrics, events, nodeName },
    onEnforced: (family) => {
      unenforced.delete(family);
      if (unenforced.size === 0) enforced.resolve();
    },
  });
  const enforcer = new Enforcer({
    kernel,
    source: {
      takeChanges: () => {
        const changes = applied.takeChanges();
        // Queue the patterns before these changes, so that new sets contain the known addresses immediately.
        if (changes.length > 0) void snooper.setPatterns(model.listsByDomainName());
        return changes;
      },
      snapshot: (family) => applied.snapshot(family),
      fqdnContent: (family) => snooper.fqdnContent(family),
    },
    observer: activity.observing(observer),
    timers: systemTimers,
    monitor,
  });
  /** Restores the resolved addresses of the previous agent. Call it before enforcement starts. */
  const restore = async () => {
    void snooper.setPatterns(model.listsByDomainName());
    try {
      snooper.restore(await kernel.fqdnEntries());
    } catch (err) {
      log.warn({ err }, 'cannot restore the resolved addresses of domain names');
    }
  };
  const ownedVips = ownedVipsSink((vip, isOwned) => {
    applied.setOwnedVip(vip, isOwned);
    enforcer.changed();
  });
  const unsynced = new Set<Kind>(MODEL_KINDS);
  const sink: ObjectSink = {
    upsert(object) {
      if (!isModelObject(object)) return;
      if ('faults' in object) {
        reportPolicyFaults({ log, events }, model.policies.get(object.kind, object.key), object);
      }
      model.upsert(object);
      enforcer.changed();
    },
    remove(kind, key) {
      if (!isModelKind(kind)) return;
      model.remove(kind, key);
      enforcer.changed();
    },
    synced(kind) {
      if (!unsynced.delete(kind) || unsynced.size > 0) return;
      void Promise.all([restore(), model.precompute()]).then(() => enforcer.start());
    },
  };
  return {
    /** Accepts objects of all kinds. Enforcement starts after the first lists of `MODEL_KINDS`. */
    sink: fanOut([
      ...(options.fqdnResolvers.length > 0 ? [] : [clusterDnsSink(snooper)]),
      ownedVips,
      sink,
    ]),
    /** Resolves after the first write in all families. */
    enforced: enforced.promise,
    /** The sources of the status API. */
    status: {
      model,
      activity,
      names: {
        hasPeer: (list: ListId, address: string) => snooper.hasPeer(list, address),
        isNotObserving: () => snooper.stats().isNotObserving,
      },
    },
    /** Stops enforcement and DNS snooping. The rules remain. */
    stop: async () => {
      // Close the snooper before the kernel, to which it writes.
      await snooper.close();
      await enforcer.stop();
      await kernel.close();
    },
  };
}
