/** Programs rules: the mode's backends, the proxier, and node ports on localhost. */
import { IPVS_DEVICE } from '../api/vip-device.ts';
import { initFamilyCounters } from '../metrics/metrics.ts';
import { watchAddresses } from '../netlink/route/address-watch.ts';
import { conntrackTable } from '../proxier/conntrack-table.ts';
import { FamilyProxier } from '../proxier/family-proxier.ts';
import { Proxier } from '../proxier/proxier.ts';
import type { ServiceCidrs } from '../proxier/service-cidrs.ts';
import { systemTimers } from '../sync/timers.ts';
import type { AgentContext } from './context.ts';
import type { AgentHealth } from './health.ts';
import { LOCALHOST_DRAIN, localhostNodePorts } from './localhost.ts';
import type { StartedMode } from './mode.ts';
import { nodeIpOverride, warnOfForwarding, warnOfStrictConntrack } from './node-setup.ts';
import { createObserver } from './observer.ts';

/**
 * Starts programming rules; they remain after `stop`.
 * @param onServed called after the first sync of all families.
 * @throws NetlinkError
 */
export async function startServing(
  context: AgentContext & { readonly serviceCidrs: ServiceCidrs },
  mode: StartedMode,
  health: AgentHealth,
  onServed: () => void,
) {
  const { options, table, changes, syncPeriod, metricSources, metrics, events, log } = context;
  const { resetsTcp, backends, localhostProxyFamilies, minSyncPeriod } = mode;
  if (resetsTcp) await warnOfStrictConntrack(log);
  // Check after the mode has started, because mode ipvs enables forwarding.
  await warnOfForwarding(table.node?.addresses ?? [], log);
  const families = backends.map(({ family }) => family);
  const unserved = new Set(families);
  for (const family of families) initFamilyCounters(metrics, family);
  const localhost = localhostNodePorts(localhostProxyFamilies, metrics, log, (key, message) =>
    events.warning(key, 'FailedToServeNodePortOnLocalhost', message),
  );
  metricSources.register(backends, localhost);
  const proxier = new Proxier({
    table,
    families: backends.map(
      (backend) =>
        new FamilyProxier(backend, conntrackTable(backend.family, resetsTcp), {
          resetsTcp,
          proxiesLocalhost: localhostProxyFamilies.includes(backend.family),
          afterFirstRules: async () => mode.afterFirstRules?.(backend.family),
        }),
    ),
    nodeIp: nodeIpOverride(options),
    serviceCidrs: () => context.serviceCidrs.cidrs,
    minSyncPeriod,
    syncPeriod,
    timers: systemTimers,
    observer: context.status.syncs.observing(
      createObserver({
        log,
        metrics,
        health,
        localhostNodePorts: localhost,
        onRefusals: (refusals) => events.refusals(refusals),
        onFirstSync: (family) => {
          mode.afterFirstSync(family);
          unserved.delete(family);
          if (unserved.size === 0) onServed();
        },
      }),
    ),
  });
  health.begin(families);
  changes.on('change', () => proxier.request());
  const watch = await watchAddresses(
    (addresses) => proxier.setNodeAddresses(addresses.map(({ address }) => address)),
    {
      // VIPs that mode ipvs or kube-proxy bound are not addresses of the node.
      ignoredLink: IPVS_DEVICE,
      onError: (error) => log.error({ err: error }, 'cannot read the addresses of this node'),
    },
  );
  return {
    /**
     * Closes the listeners of node ports on localhost, so that the next agent can bind the ports. Resolves when their
     * connections have ended, after `LOCALHOST_DRAIN` at the latest.
     */
    drain: () => localhost.drain(LOCALHOST_DRAIN),
    stop: async () => {
      await watch.close();
      await mode.stop?.();
      await proxier.stop();
    },
  };
}
