/** Network policy in a running agent. */
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { IP_FAMILIES, type IpFamily, type Kind } from '../api/objects.ts';
import type { RunOptions } from '../config/settings.ts';
import type { Events } from '../events/recorder.ts';
import { metricDefiner } from '../metrics/define.ts';
import { policyMetrics } from '../metrics/policy.ts';
import { type NftCommand, nftCommand } from '../nft/command.ts';
import type { NftMonitor } from '../nft/monitor.ts';
import { AppliedState } from '../policy/compile/applied-state.ts';
import { policyProbeScript } from '../policy/compile/policy-table.ts';
import { Enforcer } from '../policy/enforce/enforcer.ts';
import { PolicyKernel } from '../policy/enforce/kernel.ts';
import { isModelKind, isModelObject, MODEL_KINDS, PolicyModel } from '../policy/model/model.ts';
import { UserError } from '../process/errors.ts';
import { fanOut, type ObjectSink } from '../sources/source.ts';
import { systemTimers } from '../sync/timers.ts';
import { nftablesSupport } from './nftables-support.ts';
import { clusterDnsSink, createDnsLearning } from './policy-fqdn.ts';
import { policyMetricSources } from './policy-metrics.ts';
import { createPolicyObserver, reportPolicyFaults } from './policy-observer.ts';

/** A node that can enforce policies; nothing is programmed yet. */
export interface PolicySupport {
  readonly families: readonly IpFamily[];
  readonly nft: NftCommand;
}

/**
 * `--network-policy`. Unlike a mode of serving, it leaves out no family but those that the node has
 * disabled: a pod would be open in the other.
 * @throws UserError with what the node lacks.
 */
export async function requirePolicySupport({
  policyLogGroup: logGroup,
}: RunOptions): Promise<PolicySupport> {
  const nft = nftCommand();
  const { families, missing } = await nftablesSupport(nft, (family) =>
    policyProbeScript({ family, logGroup }),
  );
  const lacks = IP_FAMILIES.flatMap((family) => {
    const reason = missing.get(family);
    return reason === undefined ? [] : [`${family}: ${reason}`];
  });
  if (lacks.length > 0) {
    throw new UserError(`--network-policy does not work on this node: ${lacks.join('; ')}`);
  }
  return { families, nft };
}

/** Milliseconds between two looks at the rules that queue packets. Each is a run of iptables-save. */
const DNS_RULES_CHECK_PERIOD = 60_000;

export interface PolicyOptions {
  readonly support: PolicySupport;
  readonly options: RunOptions;
  readonly nodeName: string;
  readonly monitor: NftMonitor;
  readonly registry: Registry;
  readonly log: Logger;
  readonly events: Events;
  /** How many objects of a kind cannot be read as they are now. */
  readonly unreadable: () => ReadonlyMap<string, number>;
}

/** Network policy at work. */
export type PolicyAgent = ReturnType<typeof startPolicy>;

/** Collects objects from now on. @throws NetlinkError */
export function startPolicy(given: PolicyOptions) {
  const { support: open, options, nodeName, monitor, log, events } = given;
  const kernel = new PolicyKernel({
    ...open,
    logGroup: options.policyLogGroup,
    onWarning: (family, message, details) => log.warn({ family, ...details }, message),
  });
  const learning = createDnsLearning(kernel, options, log);
  const mending = setInterval(() => learning.resyncRules(), DNS_RULES_CHECK_PERIOD).unref();
  const model = new PolicyModel({ nodeName });
  const applied = new AppliedState(model, open.families);
  const metrics = policyMetrics(
    metricDefiner(given.registry),
    policyMetricSources({ ...given, model, applied, learning, kernel }),
    open.families,
  );
  const observer = createPolicyObserver({ log, metrics, events, nodeName });
  const enforcer = new Enforcer({
    kernel,
    source: {
      takeChanges: () => {
        const changes = applied.takeChanges();
        // Queued in the backends before these changes, so that new lists have the known addresses at once.
        if (changes.length > 0) void learning.setPatterns(model.listsByDomainName());
        return changes;
      },
      snapshot: (family) => applied.snapshot(family),
      fqdnContent: (family) => learning.fqdnContent(family),
    },
    observer: {
      ...observer,
      driftDetected: (family, what) => {
        observer.driftDetected(family, what);
        // `nft flush ruleset` takes rules of iptables-nft, too.
        learning.resyncRules();
      },
    },
    timers: systemTimers,
    monitor,
  });
  /** Takes over what an earlier agent learned; to be done before anything is enforced. */
  const restore = async () => {
    void learning.setPatterns(model.listsByDomainName());
    try {
      learning.restore(await kernel.fqdnEntries());
    } catch (err) {
      log.warn({ err }, 'cannot read which addresses of domain names were known');
    }
  };
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
    /** Takes objects of all kinds. Enforcing begins when all that matter here are synced. */
    sink: options.fqdnResolvers.length > 0 ? sink : fanOut([clusterDnsSink(learning), sink]),
    /** What is enforced stays so. */
    stop: async () => {
      clearInterval(mending);
      // Before the kernel that it writes to.
      await learning.close();
      await enforcer.stop();
      await kernel.close();
    },
  };
}
