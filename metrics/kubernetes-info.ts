/** Metrics `kubernetes_*` that all Kubernetes components have (component-base/metrics). */
import { arch } from 'node:os';
import type { Define } from './define.ts';

/** Fields of Kubernetes' `version.Info`; empty where they do not apply. */
export interface BuildInfo {
  readonly major: string;
  readonly minor: string;
  readonly gitVersion: string;
  readonly gitCommit: string;
  readonly gitTreeState: string;
  readonly buildDate: string;
  readonly goVersion: string;
  readonly compiler: string;
  readonly platform: string;
}

/** A feature gate. */
export interface Feature {
  readonly name: string;
  readonly stage: 'ALPHA' | 'BETA' | '';
  readonly isEnabled: boolean;
}

/** Go's names of architectures where Node's differ. */
const ARCHITECTURES: Readonly<Record<string, string>> = { x64: 'amd64', ia32: '386' };

/** @param version of the package, such as `0.1.0`. */
export function buildInfo(version: string): BuildInfo {
  const [major = '', minor = ''] = version.split('.');
  const architecture = arch();
  return {
    major,
    minor,
    gitVersion: `v${version}`,
    gitCommit: '',
    gitTreeState: '',
    buildDate: '',
    goVersion: '',
    compiler: `node ${process.version}`,
    platform: `${process.platform}/${ARCHITECTURES[architecture] ?? architecture}`,
  };
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
