/** Credentials for the API server: TLS options and request headers. */
import { readFile } from 'node:fs/promises';
import type { ConnectionOptions } from 'node:tls';
import type { Cluster, User } from '@kubernetes/client-node';
import type { ExecAuth } from '@kubernetes/client-node/dist/exec_auth.js';

/** Address of the API server and the identity to use. All paths are absolute. */
export interface ClusterConfig {
  /** URL without a trailing slash. */
  readonly server: string;
  readonly cluster: Cluster;
  readonly user: User;
  /** Bearer token file. Read for each session, because tokens rotate. */
  readonly tokenFile: string | undefined;
}

/** The user of a cluster without authentication. */
export const ANONYMOUS: User = { name: 'none' };

/** TLS options of connections and headers of requests. */
export interface Credentials {
  readonly tls: ConnectionOptions;
  readonly headers: Readonly<Record<string, string>>;
}

/** Fields that client-node's authenticators set. */
interface PluginCredentials {
  headers: Record<string, string>;
  cert?: string;
  key?: string;
}

/**
 * Reads credentials on every call, because files rotate and credentials of an exec plugin expire.
 */
export class CredentialSource {
  readonly #config: ClusterConfig;
  #plugin: ExecAuth | undefined;
  #reading: Promise<Credentials> | undefined;

  constructor(config: ClusterConfig) {
    this.#config = config;
  }

  /**
   * Concurrent calls share one read, so an exec credential plugin runs once for all of them.
   * @throws Error for files that cannot be read and plugins that fail.
   */
  read(): Promise<Credentials> {
    this.#reading ??= this.#read().finally(() => {
      this.#reading = undefined;
    });
    return this.#reading;
  }

  /** Discards the plugin's cached credentials, because the API server rejected them. */
  invalidate(): void {
    this.#plugin = undefined;
  }

  async #read(): Promise<Credentials> {
    const { cluster, user, tokenFile } = this.#config;
    const [ca, cert, key] = await Promise.all([
      pem('certificate-authority', cluster.caData, cluster.caFile),
      pem('client-certificate', user.certData, user.certFile),
      pem('client-key', user.keyData, user.keyFile),
    ]);
    const token = tokenFile === undefined ? user.token : await readToken(tokenFile);
    const plugin: PluginCredentials = { headers: {} };
    if (user.exec) await this.#runPlugin(plugin, ca);
    return {
      tls: {
        ...(ca && { ca }),
        ...(cert && { cert }),
        ...(key && { key }),
        ...(plugin.cert && { cert: plugin.cert }),
        ...(plugin.key && { key: plugin.key }),
        ...(cluster.tlsServerName && { servername: cluster.tlsServerName }),
        ...(cluster.skipTLSVerify && { rejectUnauthorized: false }),
      },
      headers: {
        ...(user.username && { authorization: basic(user.username, user.password ?? '') }),
        ...(plugin.headers.Authorization && { authorization: plugin.headers.Authorization }),
        ...(token && { authorization: `Bearer ${token}` }),
        ...(user.impersonateUser && { 'impersonate-user': user.impersonateUser }),
      },
    };
  }

  async #runPlugin(into: PluginCredentials, ca: Buffer | undefined): Promise<void> {
    const { user } = this.#config;
    const { ExecAuth } = await import('@kubernetes/client-node/dist/exec_auth.js');
    this.#plugin ??= new ExecAuth();
    const info = {
      name: 'KUBERNETES_EXEC_INFO',
      value: JSON.stringify(execInfo(this.#config, ca)),
    };
    const exec = { ...user.exec, env: [...(user.exec.env ?? []), info] };
    try {
      await this.#plugin.applyAuthentication({ ...user, exec }, into);
    } catch (error) {
      throw withContext(`credential plugin ${JSON.stringify(user.exec.command)}`, error);
    }
  }
}

/**
 * The KUBERNETES_EXEC_INFO that client-go passes to a credential plugin. client-node does not set
 * it.
 */
function execInfo({ server, cluster, user }: ClusterConfig, ca: Buffer | undefined): object {
  const { apiVersion, provideClusterInfo } = user.exec;
  const info = {
    server,
    'tls-server-name': cluster.tlsServerName,
    'insecure-skip-tls-verify': cluster.skipTLSVerify || undefined,
    'certificate-authority-data': ca?.toString('base64'),
    'proxy-url': cluster.proxyUrl,
  };
  const spec = { interactive: false, ...(provideClusterInfo === true && { cluster: info }) };
  return { kind: 'ExecCredential', apiVersion, spec };
}

/**
 * Reads PEM data. Inline data takes precedence over a file, as in client-go.
 * @param field kubeconfig field of the file, for the error message.
 */
async function pem(
  field: string,
  data: string | undefined,
  file: string | undefined,
): Promise<Buffer | undefined> {
  try {
    if (data) return asPem(Buffer.from(data, 'base64'));
    return file ? asPem(await readFile(file)) : undefined;
  } catch (error) {
    throw withContext(data ? `${field}-data` : field, error);
  }
}

/**
 * Rejects data without PEM, because Node's errors do not name the field. Node even ignores a
 * certificate authority without PEM, and then trusts no certificate.
 */
function asPem(bytes: Buffer): Buffer {
  if (!bytes.includes('-----BEGIN ')) throw new Error('no PEM data found');
  return bytes;
}

async function readToken(file: string): Promise<string> {
  try {
    return (await readFile(file, 'utf8')).trim();
  } catch (error) {
    throw withContext('tokenFile', error);
  }
}

/** @param what the kubeconfig field or plugin that failed. */
function withContext(what: string, cause: unknown): Error {
  const reason = cause instanceof Error ? cause.message : String(cause);
  return new Error(`${what}: ${reason.trim() || 'failed'}`, { cause });
}

function basic(username: string, password: string): string {
  return `Basic ${Buffer.from(`${username}:${password}`).toString('base64')}`;
}
