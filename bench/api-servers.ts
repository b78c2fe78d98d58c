/**
 * The API server of a bench: the tests' fake, or the programs etcd and kube-apiserver in the directory KUBE_BIN. Both run in
 * the node's network namespace.
 */
import { generateKeyPairSync } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import { RemoteDouble } from '../test/api-server/remote.ts';
import type { Manifest } from '../test/e2e/manifests.ts';
import { runIn } from '../test/lab/processes.ts';
import { kubeconfig } from './agents.ts';
import { type Network, withNetwork } from './network.ts';

type Spawn = ReturnType<typeof runIn>['spawn'];

export interface ApiServer {
  /** Path of a kubeconfig file. */
  readonly kubeconfig: string;
  /** Creates or replaces objects, one after the other if there are few. */
  put(...objects: readonly Manifest[]): Promise<void>;
}

/** Objects per call to the API server. */
const BATCH_SIZE = 1000;
const WRITER = fileURLToPath(new URL('api-writer.ts', import.meta.url));
const TOKEN = 'bench';
const ETCD = 'http://127.0.0.1:2379';
const SERVER = 'https://127.0.0.1:6443';
/** Contains the VIPs of `cluster.ts`. The first address is that of the Service `kubernetes`. */
const SERVICE_CIDR = '10.96.0.0/12';

/** What `printHead` says about the API server. */
export async function apiServerVersion(): Promise<string> {
  const { KUBE_BIN: bin } = process.env;
  if (bin === undefined) return 'a fake API server';
  const { stdout } = await execa(join(bin, 'kube-apiserver'), ['--version']);
  return `kube-apiserver ${stdout.replace('Kubernetes ', '')}`;
}

/** A node with an API server, and what runs on it. */
export interface ServedNode {
  readonly network: Network;
  readonly server: ApiServer;
  readonly spawn: Spawn;
  /** For files of a program; empty. */
  readonly directory: string;
}

/** Calls `use` with a node whose API server has the given objects. */
export async function withServedNode<Result>(
  objects: readonly Manifest[],
  use: (node: ServedNode) => Promise<Result>,
): Promise<Result> {
  const root = mkdtempSync(join(tmpdir(), 'portwide-bench-'));
  try {
    return await withNetwork(async (network) => {
      const { spawn, stop } = runIn('node', network.node);
      try {
        const server = await startApiServer(spawn, root);
        for (let at = 0; at < objects.length; at += BATCH_SIZE) {
          await server.put(...objects.slice(at, at + BATCH_SIZE));
        }
        const directory = join(root, 'program');
        mkdirSync(directory);
        return await use({ network, server, spawn, directory });
      } finally {
        // Commands of a killed program would continue without it.
        await killAll(network.node);
        await stop();
      }
    });
  } finally {
    rmSync(root, { recursive: true });
  }
}

/** Kills all processes of a namespace. */
async function killAll(namespace: string): Promise<void> {
  const { stdout } = await execa('ip', ['netns', 'pids', namespace]);
  await execa('kill', ['-9', ...stdout.split('\n')], { reject: false });
}

/** @param directory for files, which the caller removes */
async function startApiServer(spawn: Spawn, directory: string): Promise<ApiServer> {
  const { KUBE_BIN: bin } = process.env;
  const access = join(directory, 'kubeconfig');
  if (bin === undefined) {
    const double = await RemoteDouble.start(spawn);
    writeFileSync(access, kubeconfig(double.url));
    return {
      kubeconfig: access,
      put: async (...objects) => {
        await double.call('put', ...objects);
      },
    };
  }
  startPrograms(spawn, bin, directory);
  writeFileSync(access, kubeconfig(SERVER, { 'insecure-skip-tls-verify': true }, { token: TOKEN }));
  return { kubeconfig: access, put: await startWriter(spawn) };
}

function startPrograms(spawn: Spawn, bin: string, directory: string): void {
  const [key, tokens] = [join(directory, 'key.pem'), join(directory, 'tokens.csv')];
  const { privateKey } = generateKeyPairSync('rsa', {
    modulusLength: 2048,
    publicKeyEncoding: { type: 'spki', format: 'pem' },
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  });
  writeFileSync(key, privateKey);
  writeFileSync(tokens, `${TOKEN},bench,bench,"system:masters"\n`);
  const certificates = join(directory, 'certificates');
  mkdirSync(certificates);
  const etcd = [`--data-dir=${join(directory, 'etcd')}`, `--listen-client-urls=${ETCD}`];
  const server = [
    `--etcd-servers=${ETCD}`,
    `--cert-dir=${certificates}`,
    '--advertise-address=192.0.2.1',
    '--bind-address=127.0.0.1',
    `--service-cluster-ip-range=${SERVICE_CIDR}`,
    '--authorization-mode=AlwaysAllow',
    `--token-auth-file=${tokens}`,
    '--service-account-issuer=https://kubernetes.default.svc',
    `--service-account-key-file=${key}`,
    `--service-account-signing-key-file=${key}`,
    // No service account exists without a controller manager.
    '--disable-admission-plugins=ServiceAccount',
    '--max-mutating-requests-inflight=1000',
  ];
  for (const [program, args] of [
    ['etcd', [...etcd, `--advertise-client-urls=${ETCD}`]],
    ['kube-apiserver', server],
  ] as const) {
    const child = spawn(join(bin, program), args);
    // It is killed at the end. If it ends before, the writer fails.
    child.catch(() => undefined);
  }
}

/** @returns a function that writes objects and resolves when the server has answered. */
async function startWriter(spawn: Spawn): Promise<ApiServer['put']> {
  const writer = spawn(process.execPath, [WRITER, SERVER, TOKEN], { stdin: 'pipe' });
  const { stdin, stdout } = writer;
  if (stdin === null || stdout === null) throw new Error('the writer did not start');
  const lines = createInterface({ input: stdout })[Symbol.asyncIterator]();
  const answer = async () => {
    const { value, done } = await lines.next();
    if (done === true || value !== 'done') throw new Error(`the API server: ${value}`);
  };
  await answer();
  let last = Promise.resolve();
  return (...objects) => {
    stdin.write(`${JSON.stringify(objects)}\n`);
    last = last.then(answer);
    return last;
  };
}
