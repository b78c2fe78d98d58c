/**
 * Environment of the demo: a lab, the agent on its node, and the manifests that the agent watches.
 */
import assert from 'node:assert/strict';
import {
  copyFileSync,
  existsSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ExecaError } from 'execa';
import { isMap, isSeq, parseAllDocuments } from 'yaml';
import { createLab, type Host, type Lab, type Outcome, type Reply, waitFor } from '../lab.ts';

/** Timeout of all waits; a machine under load may be slow. */
export const DEADLINE_MS = 20_000;
/** Time until a process that ended is started again. */
const RESTART_MS = 2000;

const ROOT = join(import.meta.dirname, '../../..');

/** An example: file name, text, and name and addresses of its Service. */
export interface Example {
  readonly file: string;
  readonly text: string;
  /** DNS name. */
  readonly name: string;
  /** IPv4, IPv6. */
  readonly vips: readonly [string, string];
}

export interface DemoOptions {
  /** Number of pods on the node. */
  readonly pods: number;
  /** Paths of manifests beside the examples. */
  readonly manifests?: readonly string[];
  /** Further flags of the agent. */
  readonly flags?: readonly string[];
  /** Called when a process ends after `ready`; it is then started again. Without it, `ended` rejects. */
  readonly onRestart?: (reason: string) => void;
  /** Whether the user ended the demo: the lab kills processes at a signal, before `destroy`. */
  readonly isInterrupted?: () => boolean;
}

export interface DemoEnvironment {
  readonly lab: Lab;
  /** The agent's manifests and its socket are there. */
  readonly directory: string;
  readonly pods: readonly Host[];
  readonly allPorts: Example;
  readonly portRanges: Example;
  /** Command lines of the agent and of the DNS server, with DIR for the directory. */
  readonly command: string;
  readonly dnsCommand: string;
  /** Address of the DNS server. */
  readonly dnsServer: string;
  /** Runs a command of portwide on the node. @returns its output in lines, whatever its exit status. */
  portwide(...args: readonly string[]): Promise<readonly string[]>;
  /** Output of both so far, from both streams. */
  log(): string;
  /** Rejects if a process of the demo exits early. */
  readonly ended: Promise<never>;
  /** Lets the pods serve every port, and waits until both Services and the DNS server answer. */
  ready(): Promise<void>;
  /**
   * Atomically replaces an example in the agent's directory by a version with only these pods.
   *
   * @returns the time of the change, by performance.now().
   */
  keepEndpoints(example: Example, pods: readonly Host[]): number;
  /**
   * Stops the agent and the lab, removes the directory, and verifies that everything is removed.
   */
  destroy(): Promise<void>;
}

/** Builds a lab and starts the agent in it with the unmodified examples. */
export async function createEnvironment(options: DemoOptions): Promise<DemoEnvironment> {
  const allPorts = readExample('all-ports.yaml');
  const portRanges = readExample('port-ranges.yaml');
  const lab = await createLab({ pods: options.pods, remotePods: 1 });
  const directory = mkdtempSync(join(tmpdir(), 'portwide-demo-'));
  const removeDirectory = () => rmSync(directory, { recursive: true, force: true });
  process.on('exit', removeDirectory);
  const examples = [allPorts, portRanges].map(({ file }) => join(ROOT, 'examples', file));
  for (const path of [...examples, ...(options.manifests ?? [])]) {
    copyFileSync(path, join(directory, basename(path)));
  }

  const flags = [
    '--hostname-override=node',
    '--cluster-cidr=10.244.0.0/16,fd00:10:244::/48',
    ...(options.flags ?? []),
  ];
  const socket = join(directory, 'portwide.sock');
  const dnsServer = lab.node.ipv4;
  const dnsFlags = [`--bind-address=${dnsServer}`];
  let log = '';
  let isReady = false;
  let isDestroyed = false;
  const isEnding = () => isDestroyed || options.isInterrupted?.() === true;
  const start = async (command: string, its: readonly string[]): Promise<never> => {
    for (;;) {
      const reason = await ended(command, its);
      if (!isReady || isEnding() || options.onRestart === undefined) throw new Error(reason);
      options.onRestart(reason);
      await sleep(RESTART_MS);
    }
  };
  /** Runs a process. @returns why it ended. */
  const ended = (command: string, its: readonly string[]): Promise<string> => {
    const args = [command, '--manifests', directory, ...its];
    const process = lab.node.spawn(join(ROOT, 'portwide'), args);
    for (const stream of [process.stdout, process.stderr]) {
      stream?.setEncoding('utf8').on('data', (chunk: string) => {
        log += chunk;
      });
    }
    const name = `portwide ${command}`;
    return process.then(
      () => `${name} ended`,
      (error: ExecaError) => `${name} ended: ${error.shortMessage}`,
    );
  };
  const run = start('run', [...flags, `--status-socket=${socket}`]);
  const anyEnded = Promise.race([run, start('dns', dnsFlags)]);
  // Avoid an unhandled rejection if the caller does not await `ended`.
  anyEnded.catch(() => undefined);

  const pods = [...lab.pods, ...lab.remotePods];
  return {
    lab,
    directory,
    pods,
    allPorts,
    portRanges,
    command: `./portwide run --manifests DIR ${flags.join(' ')}`,
    dnsCommand: `./portwide dns --manifests DIR ${dnsFlags.join(' ')}`,
    dnsServer,
    log: () => log,
    portwide: async (...args) => {
      const command = [...args, `--status-socket=${socket}`];
      const { stdout } = await lab.node.exec(join(ROOT, 'portwide'), command, { reject: false });
      return stdout.trimEnd().split('\n');
    },
    ended: anyEnded,
    ready: async () => {
      await Promise.all(pods.map((pod) => pod.serveEveryPort()));
      for (const vip of [...allPorts.vips, ...portRanges.vips]) {
        await waitFor(
          `${vip} is served`,
          async () => {
            const { outcome } = await lab.client.udp(vip, 5060, { timeoutMs: 100 });
            return outcome === 'answered';
          },
          DEADLINE_MS,
        );
      }
      await waitFor(
        `${allPorts.name} resolves`,
        async () => 'answers' in (await lab.client.resolve(dnsServer, allPorts.name, 'A', 100)),
        DEADLINE_MS,
      );
      isReady = true;
    },
    keepEndpoints: (example, podAddresses) => {
      const draft = join(directory, `.${example.file}`);
      writeFileSync(draft, withEndpoints(example.text, podAddresses));
      const when = performance.now();
      renameSync(draft, join(directory, example.file));
      return when;
    },
    destroy: async () => {
      isDestroyed = true;
      try {
        await lab.destroy();
      } finally {
        removeDirectory();
        process.off('exit', removeDirectory);
      }
      const left = [directory, ...lab.hosts.map(({ namespace }) => `/run/netns/${namespace}`)];
      assert.deepEqual(left.filter(existsSync), [], 'everything of the lab is removed');
    },
  };
}

/** The answering pod's reply; throws if the connection was not answered. */
export function replyOf(outcome: Outcome): Reply {
  if (outcome.outcome === 'answered') return outcome.reply;
  throw new Error(`expected an answer, got ${JSON.stringify(outcome)}`);
}

function readExample(file: string): Example {
  const text = readFileSync(join(ROOT, 'examples', file), 'utf8');
  for (const document of parseAllDocuments(text)) {
    const ipv4 = document.getIn(['spec', 'clusterIPs', 0]);
    const ipv6 = document.getIn(['spec', 'clusterIPs', 1]);
    if (typeof ipv4 === 'string' && typeof ipv6 === 'string') {
      const name = `${document.getIn(['metadata', 'name'])}.default.svc.cluster.local`;
      return { file, text, name, vips: [ipv4, ipv6] };
    }
  }
  throw new Error(`examples/${file} has no Service with two cluster IPs`);
}

function withEndpoints(text: string, pods: readonly Host[]): string {
  const podAddresses = new Set(pods.flatMap(({ ipv4, ipv6 }) => [ipv4, ipv6]));
  const documents = parseAllDocuments(text);
  for (const document of documents) {
    const endpoints = document.get('endpoints');
    if (!isSeq(endpoints)) continue;
    endpoints.items = endpoints.items.filter(
      (item) => isMap(item) && podAddresses.has(String(item.getIn(['addresses', 0]))),
    );
  }
  return documents.map(String).join('');
}
