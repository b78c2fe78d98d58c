/** Metrics `kubernetes_*` that all Kubernetes components have (component-base/metrics). */
import { buildInfo } from '../process/version.ts';
import type { MetricDefiner } from './define.ts';

/** A feature gate. */
export interface Feature {
  readonly name: string;
  readonly stage: 'ALPHA' | 'BETA' | '';
  readonly isEnabled: boolean;
}

export function kubernetesInfo(
  { gauge }: MetricDefiner,
  version: string,
  features: readonly Feature[],
): void {
  // `gitVersion` is the label `git_version`.
  const labels = Object.fromEntries(
    Object.entries(buildInfo(version)).map(([field, value]) => [
      field.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      value,
    ]),
  );
  gauge('kubernetes_build_info', 'Always 1; the labels tell the version', Object.keys(labels)).set(
    labels,
    1,
  );
  const enabled = gauge(
    'kubernetes_feature_enabled',
    '1 when the feature gate is on, otherwise 0',
    ['name', 'stage'],
  );
  for (const { name, stage, isEnabled } of features)
    enabled.set({ name, stage }, isEnabled ? 1 : 0);
}
