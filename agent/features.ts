import { type FeatureGates, PAGE_GATES } from '../config/map-kinds.ts';
import type { Feature } from '../metrics/kubernetes-info.ts';
import type { MetricsPages } from '../metrics/server.ts';

/** Component name on /statusz and /flagz. */
const COMPONENT = 'portwide';

/** Feature gates that have an effect here, for `kubernetes_feature_enabled`. */
export function features(gates: FeatureGates): Feature[] {
  const names = ['AllPorts', ...Object.keys(PAGE_GATES)];
  return names.map((name) => ({ name, stage: 'BETA', isEnabled: isOn(gates, name) }));
}

/** `/statusz` and `/flagz`, unless their gate is off. @param flags values that `/flagz` shows. */
export function zPages(
  gates: FeatureGates,
  version: string,
  flags: Readonly<Record<string, string>>,
): Pick<MetricsPages, 'statusz' | 'flagz'> {
  const started = performance.timeOrigin;
  return {
    statusz: isOn(gates, 'ComponentStatusz')
      ? { component: COMPONENT, started, version }
      : undefined,
    flagz: isOn(gates, 'ComponentFlagz') ? { component: COMPONENT, flags } : undefined,
  };
}

function isOn(gates: FeatureGates, name: string): boolean {
  return gates[name] ?? PAGE_GATES[name] ?? false;
}
