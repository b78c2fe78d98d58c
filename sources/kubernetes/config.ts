/** Finds the API server from flags and environment variables. */
import { join } from 'node:path';
import { ANONYMOUS, type ClusterConfig } from './credentials.ts';
import { ClusterConfigError } from './errors.ts';

export interface ClusterOptions {
  /** Path of a kubeconfig file (`--kubeconfig`). */
  readonly kubeconfig?: string | undefined;
  /** URL of the API server (`--master`); overrides the server of the kubeconfig. */
  readonly master?: string | undefined;
}

/** Mount path of a pod's service account. */
const SERVICE_ACCOUNT = '/var/run/secrets/kubernetes.io/serviceaccount';

/**
 * Finds the API server and credentials with kube-proxy's rules: `--kubeconfig` and `--master`, or
 * the pod's service account if neither is set.
 * @param serviceAccount directory of the pod's service account.
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
    const given = master ? '--master' : `${where}server`;
    throw new ClusterConfigError(`${given} ${JSON.stringify(server)} is not an http or https URL`);
  }
  const { proxyUrl } = config.cluster;
  if (proxyUrl && !(URL.canParse(proxyUrl) && /^https?:$/.test(new URL(proxyUrl).protocol))) {
    const shown = JSON.stringify(proxyUrl);
    throw new ClusterConfigError(
      `${where}proxy-url ${shown} is not an http or https URL; other proxies are not supported`,
    );
  }
  if (config.user.authProvider) {
    // Reject auth providers, which kube-proxy does not support either.
    const reason = 'auth-provider is not supported; use exec or tokenFile';
    throw new ClusterConfigError(`${where}${reason}`);
  }
  return { ...config, server };
}

async function baseConfig(
  kubeconfig: string | undefined,
  master: string | undefined,
  serviceAccount: string,
): Promise<ClusterConfig> {
  // Load the YAML parser only on demand: it takes megabytes, and a service account needs no
  // kubeconfig.
  if (kubeconfig) return (await import('./kubeconfig.ts')).readKubeconfig(kubeconfig);
  if (master) {
    const cluster = { name: 'master', server: master, skipTLSVerify: false };
    return { server: master, cluster, user: ANONYMOUS, tokenFile: undefined };
  }
  const { KUBERNETES_SERVICE_HOST: host, KUBERNETES_SERVICE_PORT: port } = process.env;
  if (!host || !port) {
    throw new ClusterConfigError(
      'neither --kubeconfig nor --master is set, and this process does not run in a pod; to run without an API server, use --manifests',
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
