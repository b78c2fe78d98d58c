import { allPortsScenarios } from './all-ports.ts';
import { clusterIPScenarios } from './cluster-ip.ts';
import { externalScenarios } from './external.ts';
import type { Scenario } from './scenario.ts';
import { sharedVipScenarios } from './shared-vip.ts';
import { staleFlowScenarios } from './stale-flows.ts';

/** All scenarios, by subject. */
export const SCENARIOS: Readonly<Record<string, readonly Scenario[]>> = {
  'all-ports Services': allPortsScenarios,
  'shared VIPs': sharedVipScenarios,
  'cluster IPs': clusterIPScenarios,
  'traffic from outside': externalScenarios,
  'stale flows': staleFlowScenarios,
};
