import { readFile } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import type { Cluster, User } from '@kubernetes/client-node';
import { isRecord } from '../../api/read-field.ts';

export interface ClusterOptions {
  /** Path of a kubeconfig file (`--kubeconfig`). */
  readonly kubeconfig?: string | undefined;
  /** URL of the API server (`--master`); takes the place of the kubeconfig's. */
  readonly master?: string | undefined;
}

/** How to reach the API server and who we are there. All paths are absolute. */
export interface ClusterConfig {
  /** URL without a slash at its end. */
  readonly server: string;
  readonly cluster: Cluster;
  readonly user: User;
  /** File of a bearer token, read for each session, for tokens rotate. */
  readonly tokenFile: string | undefined;
}

/** The cluster cannot be told from the flags and the environment; see `cause`. */
export class ClusterConfigError extends Error {
  override readonly name = 'ClusterConfigError';
}

/** What client-node leaves out of a user of a kubeconfig. */
interface UserEntry {
  readonly name: string;
  readonly user?: { readonly tokenFile?: string };
}

const ANONYMOUS: User = { name: 'none' };
/** Where the kubelet mounts a pod's service account. */
const SERVICE_ACCOUNT = '/var/run/secrets/kubernetes.io/serviceaccount';

/**
 * How to reach the API server, as kube-proxy decides it: `--kubeconfig` and `--master`, or without
 * both the service account of the pod.
 *
 * Of client-node only those modules are loaded that read a kubeconfig: its index takes half a second
 * of CPU and 85 MiB for the API's types. Its KubeConfig does not know `tokenFile`, which the
 * kubeconfig of every kubeadm cluster's kube-proxy has.
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
  if (kubeconfig) return readKubeconfig(kubeconfig);
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

async function readKubeconfig(path: string): Promise<ClusterConfig> {
  const [{ parse, YAMLParseError }, { newClusters, newContexts, newUsers }] = await Promise.all([
    import('yaml'),
    import('@kubernetes/client-node/dist/config_types.js'),
  ]);
  const refuse = (reason: string, cause?: unknown) =>
    new ClusterConfigError(`kubeconfig ${JSON.stringify(path)} ${reason}`, { cause });
  const parsed = (text: string): unknown => {
    try {
      return parse(text, { logLevel: 'error' });
    } catch (error) {
      // Neither its message nor a cause: both quote the file, which has credentials.
      const { code, linePos } = error instanceof YAMLParseError ? error : {};
      const [start] = linePos ?? [];
      const where = start && ` at line ${start.line}, column ${start.col} (${code})`;
      throw refuse(`is no valid YAML${where ?? ''}`);
    }
  };
  try {
    const raw = parsed(await readFile(path, 'utf8'));
    const { clusters, contexts, users, 'current-context': current } = isRecord(raw) ? raw : {};
    const context = newContexts(contexts).find(({ name }) => name === current);
    if (context === undefined) throw refuse('has no current context');
    const cluster = newClusters(clusters).find(({ name }) => name === context.cluster);
    if (cluster === undefined) throw refuse(`has no cluster ${JSON.stringify(context.cluster)}`);
    const user = context.user
      ? newUsers(users).find(({ name }) => name === context.user)
      : ANONYMOUS;
    if (user === undefined) throw refuse(`has no user ${JSON.stringify(context.user)}`);
    if (!(user.certData || user.certFile) !== !(user.keyData || user.keyFile)) {
      const [given, missing] =
        user.keyData || user.keyFile
          ? ['client-key', 'client-certificate']
          : ['client-certificate', 'client-key'];
      throw refuse(`has a ${given} of user ${JSON.stringify(user.name)} without a ${missing}`);
    }
    const entries = Array.isArray(users) ? (users as readonly UserEntry[]) : [];
    const entry = entries.find(({ name }) => name === user.name);
    return {
      server: cluster.server,
      cluster: { ...cluster, ...filesOf(path, { caFile: cluster.caFile }) },
      user: {
        ...user,
        ...filesOf(path, { certFile: user.certFile, keyFile: user.keyFile }),
        ...(user.exec && { exec: pluginOf(path, user.exec) }),
      },
      tokenFile: filesOf(path, { tokenFile: entry?.user?.tokenFile }).tokenFile,
    };
  } catch (error) {
    if (error instanceof ClusterConfigError) throw error;
    throw refuse(`cannot be read: ${error instanceof Error ? error.message : error}`, error);
  }
}

/** A command with a slash in it is a file; others are looked for in the PATH. */
function pluginOf(kubeconfig: string, exec: { readonly command?: unknown }): object {
  const { command } = exec;
  const isFile = typeof command === 'string' && command.includes('/');
  return isFile ? { ...exec, ...filesOf(kubeconfig, { command }) } : exec;
}

/** The files that are named, seen from where the kubeconfig is. */
function filesOf<Name extends string>(
  kubeconfig: string,
  names: Readonly<Record<Name, string | undefined>>,
): Partial<Record<Name, string>> {
  const files: Partial<Record<Name, string>> = {};
  for (const name in names) {
    const file = names[name];
    if (file) files[name] = resolve(dirname(kubeconfig), file);
  }
  return files;
}
