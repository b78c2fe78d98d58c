/** Metrics `kubernetes_*` of all Kubernetes components (component-base/metrics). */
import { buildInfo } from '../process/version.ts';
import type { MetricDefiner } from './define.ts';

/** A feature gate. */
export interface Feature {
  readonly name: string;
  readonly stage: 'ALPHA' | 'BETA' | 'DEPRECATED' | '';
  readonly isEnabled: boolean;
}

export function kubernetesInfo(
  { gauge }: MetricDefiner,
  version: string,
  features: readonly Feature[],
): void {
  // Label names are in snake case: `gitVersion` becomes `git_version`.
  const labels = Object.fromEntries(
    Object.entries(buildInfo(version)).map(([field, value]) => [
      field.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      value,
    ]),
  );
  gauge(
    'kubernetes_build_info',
    'Constant 1, labelled by the version and platform of the binary.',
    Object.keys(labels),
  ).set(labels, 1);
  const enabled = gauge(
    'kubernetes_feature_enabled',
    '1 if the feature gate is enabled, otherwise 0.',
    ['name', 'stage'],
  );
  for (const { name, stage, isEnabled } of features)
    enabled.set({ name, stage }, isEnabled ? 1 : 0);
}
