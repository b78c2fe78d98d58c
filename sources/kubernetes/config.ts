import type { KubeConfig } from '@kubernetes/client-node';

export interface ClusterOptions {
  /** Path of a kubeconfig file (`--kubeconfig`). */
  readonly kubeconfig?: string | undefined;
  /** URL of the API server (`--master`); takes the place of the kubeconfig's. */
  readonly master?: string | undefined;
}

/** The cluster cannot be told from the flags and the environment; see `cause`. */
export class ClusterConfigError extends Error {
  override readonly name = 'ClusterConfigError';
}

/**
 * How to reach the API server and who we are there, as kube-proxy decides it: `--kubeconfig` and
 * `--master`, or without both the service account of the pod.
 *
 * Loads client-node only when it is called: half a second and 122 MiB.
 * @throws ClusterConfigError
 */
export async function loadClusterConfig(options: ClusterOptions): Promise<KubeConfig> {
  const { KubeConfig } = await import('@kubernetes/client-node');
  const config = new KubeConfig();
  const { kubeconfig, master } = options;
  if (kubeconfig !== undefined && kubeconfig !== '') {
    try {
      config.loadFromFile(kubeconfig);
    } catch (cause) {
      const reason = cause instanceof Error ? cause.message : String(cause);
      throw new ClusterConfigError(
        `kubeconfig ${JSON.stringify(kubeconfig)} cannot be read: ${reason}`,
        { cause },
      );
    }
  } else if (master !== undefined && master !== '') {
    config.loadFromClusterAndUser(
      { name: 'master', server: master, skipTLSVerify: false },
      { name: 'none' },
    );
  } else if (process.env.KUBERNETES_SERVICE_HOST && process.env.KUBERNETES_SERVICE_PORT) {
    config.loadFromCluster();
  } else {
    throw new ClusterConfigError('neither --kubeconfig nor --master is given, and this is no pod');
  }
  return withServer(config, master);
}

function withServer(config: KubeConfig, master: string | undefined): KubeConfig {
  const current = config.getCurrentCluster();
  if (current === null) throw new ClusterConfigError('the kubeconfig has no current cluster');
  const server = master ? master : current.server;
  if (!URL.canParse(server) || !/^https?:$/.test(new URL(server).protocol)) {
    throw new ClusterConfigError(`${JSON.stringify(server)} is no URL of an API server`);
  }
  // client-node refuses plain HTTP unless told to skip what plain HTTP has not got.
  const skipTLSVerify = current.skipTLSVerify || server.startsWith('http:');
  config.clusters = config.clusters.map((cluster) =>
    cluster.name === current.name ? { ...cluster, server, skipTLSVerify } : cluster,
  );
  return config;
}
