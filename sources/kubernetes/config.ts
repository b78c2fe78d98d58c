/** How to reach the API server, by flags and the environment. */
import { join } from 'node:path';
import { ANONYMOUS, type ClusterConfig } from './credentials.ts';
import { ClusterConfigError } from './errors.ts';

export interface ClusterOptions {
  /** Path of a kubeconfig file (`--kubeconfig`). */
  readonly kubeconfig?: string | undefined;
  /** URL of the API server (`--master`); takes the place of the kubeconfig's. */
  readonly master?: string | undefined;
}

/** Where the kubelet mounts a pod's service account. */
const SERVICE_ACCOUNT = '/var/run/secrets/kubernetes.io/serviceaccount';

/**
 * How to reach the API server, as kube-proxy decides it: `--kubeconfig` and `--master`, or without
 * both the service account of the pod.
 * @param serviceAccount the directory of the pod's service account.
 * @throws ClusterConfigError
 */
export async function loadClusterConfig(
  { kubeconfig, master }: ClusterOptions,
  serviceAccount = SERVICE_ACCOUNT,
): Promise<ClusterConfig> {
  const config = await baseConfig(kubeconfig, master, serviceAccount);
  const where = kubeconfig ? `kubeconfig ${JSON.stringify(kubeconfig)}: ` : '';
  const server = (master ? master : config.server).replace(/\/+$/, '');
  if (!URL.canParse(server) || !/^https?:$/.test(new URL(server).protocol)) {
    const given = master ? '--master:' : `${where}server`;
    throw new ClusterConfigError(`${given} ${JSON.stringify(server)} is no URL of an API server`);
  }
  const { proxyUrl } = config.cluster;
  if (proxyUrl && !(URL.canParse(proxyUrl) && /^https?:$/.test(new URL(proxyUrl).protocol))) {
    const shown = JSON.stringify(proxyUrl);
    throw new ClusterConfigError(`${where}proxy-url ${shown} is no HTTP proxy`);
  }
  if (config.user.authProvider) {
    // As kube-proxy, which is built without the auth providers.
    const reason = 'auth-provider is not supported; use exec, or a token file';
    throw new ClusterConfigError(`${where}${reason}`);
  }
  return { ...config, server };
}

async function baseConfig(
  kubeconfig: string | undefined,
  master: string | undefined,
  serviceAccount: string,
): Promise<ClusterConfig> {
  // What reads YAML takes megabytes, and in a pod there is none to read.
  if (kubeconfig) return (await import('./kubeconfig.ts')).readKubeconfig(kubeconfig);
  if (master) {
    const cluster = { name: 'master', server: master, skipTLSVerify: false };
    return { server: master, cluster, user: ANONYMOUS, tokenFile: undefined };
  }
  const { KUBERNETES_SERVICE_HOST: host, KUBERNETES_SERVICE_PORT: port } = process.env;
  if (!host || !port) {
    throw new ClusterConfigError(
      'neither --kubeconfig nor --master is given, and this is no pod; without an API server, use --manifests',
    );
  }
  const server = `https://${host.includes(':') ? `[${host}]` : host}:${port}`;
  const caFile = join(serviceAccount, 'ca.crt');
  return {
    server,
    cluster: { name: 'in-cluster', server, caFile, skipTLSVerify: false },
    user: { name: 'in-cluster' },
    tokenFile: join(serviceAccount, 'token'),
  };
}
