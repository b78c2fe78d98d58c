/** Metrics `kubernetes_*` that all Kubernetes components have (component-base/metrics). */
import { buildInfo } from '../process/version.ts';
import type { Define } from './define.ts';

/** A feature gate. */
export interface Feature {
  readonly name: string;
  readonly stage: 'ALPHA' | 'BETA' | '';
  readonly isEnabled: boolean;
}

export function kubernetesInfo(
  { gauge }: Define,
  version: string,
  features: readonly Feature[],
): void {
  const info = buildInfo(version);
  gauge('kubernetes_build_info', 'Always 1; the labels tell the version', [
    'major',
    'minor',
    'git_version',
    'git_commit',
    'git_tree_state',
    'build_date',
    'go_version',
    'compiler',
    'platform',
  ]).set(
    {
      major: info.major,
      minor: info.minor,
      git_version: info.gitVersion,
      git_commit: info.gitCommit,
      git_tree_state: info.gitTreeState,
      build_date: info.buildDate,
      go_version: info.goVersion,
      compiler: info.compiler,
      platform: info.platform,
    },
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
