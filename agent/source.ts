/** Creates the configured source of objects: an API server, or a directory of manifests. */
import type { InvalidObject } from '../api/errors.ts';
import type { RunOptions } from '../config/settings.ts';
import type { DebugLog } from '../process/log.ts';
import { loadClusterConfig } from '../sources/kubernetes/config.ts';
import type { UnreadableObject } from '../sources/kubernetes/informer-store.ts';
import { ALL_PODS, type Resource } from '../sources/kubernetes/resources.ts';
import type { OpenSession } from '../sources/kubernetes/session.ts';
import { KubernetesSource, type SourceObserver } from '../sources/kubernetes/source.ts';
import type { ObjectSink, Source } from '../sources/source.ts';
import { aggregateFailures } from './source-failures.ts';

interface SourceOptions {
  readonly options: Pick<RunOptions, 'manifests' | 'kubeconfig' | 'master'>;
  /** The resources to list and watch; manifests are read for the same kinds. */
  readonly resources: readonly Resource[];
  readonly sink: ObjectSink;
  readonly log: DebugLog;
  readonly observer: SourceObserver;
  /** Called once with a function that opens sessions, if there is an API server. */
  readonly onSessions?: (open: OpenSession) => void;
  /** Called for each unreadable object of the API server; again only when its problem changes. */
  readonly onUnreadable?: (problem: InvalidObject, object: UnreadableObject) => void;
  /** Called with the number of faulty manifests, at first and when it changes. */
  readonly onFaultyManifests?: (count: number) => void;
}

/**
 * Checks the kubeconfig or the manifest directory, before anything on the node is changed.
 * @throws ClusterConfigError, ManifestDirectoryError
 */
export async function checkSource(
  options: Pick<RunOptions, 'manifests' | 'kubeconfig' | 'master'>,
): Promise<void> {
  if (options.manifests === undefined) await loadClusterConfig(options);
  else (await import('../sources/manifests/directory.ts')).listManifests(options.manifests);
}

/** Creates the source. Loads the YAML parser only for manifests, because it takes megabytes of memory. */
export function createSource(given: SourceOptions): Source {
  const { options, resources, sink, log, observer } = given;
  const { onSessions, onUnreadable, onFaultyManifests } = given;
  const { manifests, kubeconfig, master } = options;
  if (manifests !== undefined) {
    return loadedAtStart(async () => {
      const { ManifestSource } = await import('../sources/manifests/source.ts');
      return new ManifestSource({
        directory: manifests,
        kinds: resources.map(({ kind }) => kind),
        sink,
        onProblem: (problem) => log.warn({ ...problem }, 'manifest is faulty'),
        onRecovered: (file, isGone) =>
          log.info(
            { file },
            isGone ? 'faulty manifest was removed' : 'manifest is no longer faulty',
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
    ...aggregateFailures(log, observer, [...resources, ALL_PODS]),
    ...(onSessions === undefined ? {} : { onSessions }),
    onProblem: (problem, unreadable) => {
      const { object, field, reason } = problem;
      log.warn(
        { object, field, reason },
        'cannot read object; its last readable version, if any, remains in force',
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
    faults: () => loaded?.faults() ?? [],
    unreadable: () => loaded?.unreadable() ?? new Map(),
  };
}
