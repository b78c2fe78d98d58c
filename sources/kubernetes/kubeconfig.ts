/** Reads kubeconfig files. */
import { readFile } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { newClusters, newContexts, newUsers } from '@kubernetes/client-node/dist/config_types.js';
import { parse, YAMLParseError } from 'yaml';
import { asError } from '../../api/errors.ts';
import { isRecord } from '../../api/read-field.ts';
import { ANONYMOUS, type ClusterConfig } from './credentials.ts';
import { ClusterConfigError } from './errors.ts';

/** An entry of `users`, with the field that client-node does not parse. */
interface UserEntry {
  readonly name: string;
  readonly user?: { readonly tokenFile?: string };
}

/**
 * Reads the cluster and user of a kubeconfig's current context.
 *
 * Loads only the client-node modules that parse a kubeconfig: the index module takes half a second
 * of CPU and 85 MiB for the API types. client-node's KubeConfig does not support `tokenFile`, which
 * kubeadm uses in kube-proxy's kubeconfig.
 * @throws ClusterConfigError
 */
export async function readKubeconfig(path: string): Promise<ClusterConfig> {
  const refuse = (reason: string, cause?: unknown) =>
    new ClusterConfigError(`kubeconfig ${JSON.stringify(path)} ${reason}`, { cause });
  const parsed = (text: string): unknown => {
    try {
      return parse(text, { logLevel: 'error' });
    } catch (error) {
      // Omit the parser's message and cause: both quote the file, which contains credentials.
      const { code, linePos } = error instanceof YAMLParseError ? error : {};
      const [start] = linePos ?? [];
      const where = start && ` at line ${start.line}, column ${start.col} (${code})`;
      throw refuse(`is not valid YAML${where ?? ''}`);
    }
  };
  try {
    const raw = parsed(await readFile(path, 'utf8'));
    const { clusters, contexts, users, 'current-context': current } = isRecord(raw) ? raw : {};
    const context = newContexts(contexts).find(({ name }) => name === current);
    if (context === undefined) throw refuse('has no context with the name in current-context');
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
      throw refuse(`has a ${given} but no ${missing} for user ${JSON.stringify(user.name)}`);
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
    throw refuse(`cannot be read: ${asError(error).message}`, error);
  }
}

/** A command with a slash is a path relative to the kubeconfig; others are looked up in PATH. */
function pluginOf(kubeconfig: string, exec: { readonly command?: unknown }): object {
  const { command } = exec;
  const isFile = typeof command === 'string' && command.includes('/');
  return isFile ? { ...exec, ...filesOf(kubeconfig, { command }) } : exec;
}

/** Resolves paths relative to the directory of the kubeconfig. */
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
