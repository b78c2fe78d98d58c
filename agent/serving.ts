/** The part of a running agent that writes rules: the mode's backends, the proxier, and node ports on localhost. */
import { IPVS_DEVICE } from '../api/vip-device.ts';
import { initFamily } from '../metrics/metrics.ts';
import { watchAddresses } from '../netlink/route/address-watch.ts';
import { conntrackTable } from '../proxier/conntrack-table.ts';
import { FamilyProxier } from '../proxier/family-proxier.ts';
import { Proxier } from '../proxier/proxier.ts';
import { systemTimers } from '../sync/timers.ts';
import type { AgentContext } from './context.ts';
import type { AgentHealth } from './health.ts';
import { LOCALHOST_DRAIN, localhostNodePorts } from './localhost.ts';
import type { StartedMode } from './mode.ts';
import { nodeIpOverride, warnOfForwarding, warnOfStrictConntrack } from './node-setup.ts';
import { createObserver } from './observer.ts';

/**
 * Writes rules from now on; they stay after `stop`.
 * @param onServed called when the rules of all families have been written for the first time.
 * @throws NetlinkError
 */
export async function startServing(
  context: AgentContext,
  mode: StartedMode,
  health: AgentHealth,
  onServed: () => void,
) {
  const {
    options,
    table,
    changes,
    syncPeriod,
    metricSources: numbers,
    metrics,
    events,
    log,
  } = context;
  const { resetsTcp, backends, localhostProxyFamilies, minSyncPeriod } = mode;
  if (resetsTcp) await warnOfStrictConntrack(log);
  // After the mode has started: mode ipvs turns it on.
  await warnOfForwarding(table.node?.addresses ?? [], log);
  const families = backends.map(({ family }) => family);
  const unserved = new Set(families);
  for (const family of families) initFamily(metrics, family);
  const localhost = localhostNodePorts(localhostProxyFamilies, metrics, log, (key, message) =>
    events.warning(key, 'FailedToServeNodePortOnLocalhost', message),
  );
  numbers.register(backends, localhost);
  const proxier = new Proxier({
    table,
    families: backends.map(
      (backend) =>
        new FamilyProxier(backend, conntrackTable(backend.family), {
          resetsTcp,
          proxiesLocalhost: localhostProxyFamilies.includes(backend.family),
        }),
    ),
    nodeIp: nodeIpOverride(options),
    minSyncPeriod,
    syncPeriod,
    timers: systemTimers,
    observer: createObserver({
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
  });
  health.begin(families);
  changes.on('change', () => proxier.request());
  const watch = await watchAddresses(
    (addresses) => proxier.setNodeAddresses(addresses.map(({ address }) => address)),
    {
      // VIPs that the agent, or kube-proxy, bound there are not the node's own.
      ignoredLink: IPVS_DEVICE,
      onError: (error) => log.error({ err: error }, 'cannot read the addresses of this node'),
    },
  );
  return {
    /** Lets go of node ports on localhost, so that the next agent can listen on them. Resolves when their connections are over. */
    drain: () => localhost.drain(LOCALHOST_DRAIN),
    stop: async () => {
      await watch.close();
      await proxier.stop();
    },
  };
}
