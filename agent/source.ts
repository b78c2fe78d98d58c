/** The source of objects that settings name: an API server, or a directory of manifests. */
import type { InvalidObject } from '../api/errors.ts';
import type { RunOptions } from '../config/settings.ts';
import type { DebugLog } from '../process/log.ts';
import { loadClusterConfig } from '../sources/kubernetes/config.ts';
import type { UnreadableObject } from '../sources/kubernetes/informer-store.ts';
import type { Resource } from '../sources/kubernetes/resources.ts';
import type { OpenSession } from '../sources/kubernetes/session.ts';
import { KubernetesSource, type SourceObserver } from '../sources/kubernetes/source.ts';
import { formatProblem } from '../sources/manifests/problem.ts';
import type { ObjectSink, Source } from '../sources/source.ts';
import { aggregateFailures } from './source-failures.ts';

interface SourceOptions {
  readonly options: Pick<RunOptions, 'manifests' | 'kubeconfig' | 'master'>;
  /** What is asked of an API server; of manifests, the same kinds are read. */
  readonly resources: readonly Resource[];
  readonly sink: ObjectSink;
  readonly log: DebugLog;
  readonly observer: SourceObserver;
  /** Told once how to open sessions, where there is an API server. */
  readonly onSessions?: (open: OpenSession) => void;
  /** Told of each object of the API server that cannot be read, once until that changes. */
  readonly onUnreadable?: (problem: InvalidObject, object: UnreadableObject) => void;
  /** Told how many manifests have a fault, at first and when it changes. */
  readonly onFaultyManifests?: (count: number) => void;
}

/**
 * Whether there is somewhere to get Services from, as far as files tell: found before anything on the
 * node is changed.
 * @throws ClusterConfigError, ManifestDirectoryError
 */
export async function checkSource(
  options: Pick<RunOptions, 'manifests' | 'kubeconfig' | 'master'>,
): Promise<void> {
  if (options.manifests === undefined) await loadClusterConfig(options);
  else (await import('../sources/manifests/directory.ts')).listManifests(options.manifests);
}

/**
 * Where objects come from: a directory of manifests, or an API server. Modules that read manifests are loaded where there are
 * some: a YAML parser takes megabytes.
 */
export function createSource(of: SourceOptions): Source {
  const { options, resources, sink, log, observer, onSessions, onUnreadable, onFaultyManifests } =
    of;
  const { manifests, kubeconfig, master } = options;
  if (manifests !== undefined) {
    return loadedAtStart(async () => {
      const { ManifestSource } = await import('../sources/manifests/source.ts');
      return new ManifestSource({
        directory: manifests,
        kinds: resources.map(({ kind }) => kind),
        sink,
        onProblem: (problem) => log.warn({ ...problem }, formatProblem(problem)),
        onRecovered: (file, isGone) =>
          log.info(
            { file },
            isGone ? 'the manifest with a fault is gone' : 'read again, without a fault',
          ),
        ...(onFaultyManifests === undefined ? {} : { onFaulty: onFaultyManifests }),
      });
    });
  }
  return new KubernetesSource({
    kubeconfig,
    master,
    resources,
    sink,
    ...aggregateFailures(log, observer, resources),
    ...(onSessions === undefined ? {} : { onSessions }),
    onProblem: (problem, unreadable) => {
      const { object, field, reason } = problem;
      log.warn(
        { object, field, reason },
        'cannot read this object; its last version stays in force',
      );
      if (unreadable !== undefined) onUnreadable?.(problem, unreadable);
    },
  });
}

function loadedAtStart(load: () => Promise<Source>): Source {
  let loading: Promise<Source> | undefined;
  let loaded: Source | undefined;
  return {
    start: async () => {
      loading = load();
      loaded = await loading;
      await loaded.start();
    },
    stop: async () => (await loading)?.stop(),
    unreadable: () => loaded?.unreadable() ?? new Map(),
  };
}
