/**
 * Stage of the media demo: examples/media-server.yaml on the two nodes of a lab. Its pods run the command of the
 * StatefulSet, an agent runs on each node, and a client outside makes calls.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ResultPromise } from 'execa';
import { parseAllDocuments } from 'yaml';
import { createLab, type Host, type Lab, waitFor } from '../../lab/lab.ts';
import { AGENT_FLAGS, Agent } from '../agent.ts';
import { type Manifest, withPods } from '../manifests.ts';
import { type Calls, startCalls } from './calls.ts';
import { type Capture, startCapture, trackedUdp } from './tcpdump.ts';

const EXAMPLE = new URL('../../../examples/media-server.yaml', import.meta.url).pathname;
/** A machine under load starts servers slowly. */
const DEADLINE_MS = 30_000;
const PASSWORD = 'not-secret';
const TURN_PORT = 3478;
const LOG_LINES = 30;
/** Private /tmp, as in a container. */
const CONTAINER = 'mount -t tmpfs tmpfs /tmp && exec "$@"';

interface Endpoint {
  readonly addresses: readonly string[];
  readonly nodeName: string;
  readonly conditions?: Readonly<Record<string, boolean>>;
  readonly targetRef: { readonly kind: 'Pod'; readonly name: string };
}

interface Container {
  readonly command: readonly string[];
  readonly args: readonly string[];
}

/** What the stage reads from the example. */
interface Example {
  readonly objects: readonly Manifest[];
  readonly container: Container;
  readonly vips: Readonly<Record<4 | 6, string>>;
  /** First port and ports of each pod. */
  readonly first: number;
  readonly perPod: number;
}

/** A pod of the StatefulSet. */
export interface MediaPod {
  readonly ordinal: number;
  readonly host: Host;
  isTerminating: boolean;
}

export class MediaStage {
  readonly lab: Lab;
  readonly example: Example;
  readonly calls: Calls;
  readonly directory: string;
  /** By ordinal. */
  readonly pods: MediaPod[] = [];
  readonly #agents: readonly Agent[];
  readonly #relayLog: string[] = [];
  readonly #servers = new Map<Host, ResultPromise>();

  private constructor(lab: Lab, example: Example, calls: Calls, directory: string) {
    this.lab = lab;
    this.example = example;
    this.calls = calls;
    this.directory = directory;
    // A node's own packets show whether its agent has synced; the client's wire shows only calls.
    this.#agents = [lab.node, lab.node2].map(
      (node) => new Agent({ ...lab, node, client: node }, { syncs: 2 }),
    );
  }

  /** Builds the lab and starts agents and relays. On failure everything is removed. */
  static async create(): Promise<MediaStage> {
    const example = readExample();
    const lab = await createLab({ pods: 3, remotePods: 3 });
    const directory = mkdtempSync(join(tmpdir(), 'portwide-media-'));
    try {
      const { client } = lab;
      const calls = await startCalls({
        namespace: client.namespace,
        addresses: { 4: client.ipv4, 6: client.ipv6 },
        vips: example.vips,
        turnPort: TURN_PORT,
        user: 'media',
        password: PASSWORD,
      });
      return new MediaStage(lab, example, calls, directory);
    } catch (error) {
      rmSync(directory, { recursive: true, force: true });
      await lab.destroy();
      throw error;
    }
  }

  /** Starts the pods of the example and the agents. */
  async start(): Promise<void> {
    const { pods, remotePods } = this.lab;
    const [first, second] = pods;
    const [remote] = remotePods;
    assert.ok(first && second && remote);
    for (const [ordinal, host] of [first, remote, second].entries()) {
      this.pods.push({ ordinal, host, isTerminating: false });
    }
    await Promise.all([...this.pods.map((pod) => this.startServer(pod)), this.startAgents()]);
    await this.apply();
  }

  /** Starts the agents of both nodes. */
  async startAgents(): Promise<void> {
    await Promise.all(
      this.#agents.map((agent, at) =>
        agent.start([
          ...AGENT_FLAGS,
          '--proxy-mode=nftables',
          ...(at === 0 ? [] : ['--hostname-override=node2']),
        ]),
      ),
    );
  }

  /** Sends SIGKILL to both agents. */
  async killAgents(): Promise<void> {
    await Promise.all(this.#agents.map((agent) => agent.kill()));
  }

  /** Starts the relay of a pod, and waits until it listens in both families. */
  async startServer({ ordinal, host }: MediaPod): Promise<void> {
    const { command, args } = this.example.container;
    const server = host.spawn('sh', ['-c', CONTAINER, 'sh', ...command, ...args], {
      env: {
        POD_INDEX: String(ordinal),
        POD_IPS: `${host.ipv4},${host.ipv6}`,
        TURN_PASSWORD: PASSWORD,
      },
    });
    this.#servers.set(host, server);
    for (const stream of [server.stdout, server.stderr]) {
      stream?.setEncoding('utf8').on('data', (text: string) => {
        this.#relayLog.push(`media-${ordinal}: ${text}`);
        if (this.#relayLog.length > LOG_LINES) this.#relayLog.shift();
      });
    }
    const files = ['/proc/net/udp', '/proc/net/udp6'];
    const port = `:${TURN_PORT.toString(16).toUpperCase().padStart(4, '0')} `;
    await waitFor(
      `the relay of media-${ordinal} listens`,
      async () => {
        assert.equal(server.nodeChildProcess.exitCode, null, 'the relay ended');
        const outputs = await Promise.all(files.map((file) => host.exec('cat', [file])));
        return outputs.every(({ stdout }) => stdout.includes(port));
      },
      DEADLINE_MS,
    );
  }

  /** Ends the relay of a pod, as the kubelet does after the grace period. */
  async stopServer({ host }: MediaPod): Promise<void> {
    const server = this.#servers.get(host);
    this.#servers.delete(host);
    assert.equal(server?.nodeChildProcess.exitCode, null, 'the relay runs');
    const exited = once(server.nodeChildProcess, 'exit');
    server.kill('SIGKILL');
    await exited;
  }

  /** Puts the pods of this moment in the EndpointSlices, and waits until both nodes have them. */
  async apply(): Promise<void> {
    const objects = this.example.objects.map((object) =>
      object.kind === 'EndpointSlice' ? this.#withPods(object) : object,
    );
    await Promise.all(this.#agents.map((agent) => agent.apply(withPods(objects))));
  }

  #withPods(slice: Manifest): Manifest {
    const isIpv4 = slice.addressType === 'IPv4';
    const endpoints = this.pods.map(
      ({ ordinal, host, isTerminating }): Endpoint => ({
        addresses: [isIpv4 ? host.ipv4 : host.ipv6],
        nodeName: this.lab.pods.includes(host) ? 'node' : 'node2',
        conditions: { ready: !isTerminating, serving: true, terminating: isTerminating },
        targetRef: { kind: 'Pod', name: `media-${ordinal}` },
      }),
    );
    return { ...slice, endpoints };
  }

  /** Ordinal of the pod that owns a port. */
  ownerOf(port: number): number {
    return Math.floor((port - this.example.first) / this.example.perPod);
  }

  /** Captures all UDP packets and ICMP errors of the client. */
  capture(): Promise<Capture> {
    return startCapture(this.lab.client, this.directory);
  }

  /** Entries of connection tracking of both nodes. */
  conntrack(): Promise<readonly string[]> {
    return trackedUdp([this.lab.node, this.lab.node2]);
  }

  /** What tells why packets are missing: full buffers of sockets, and the last lines of relays and agents. */
  async logs(): Promise<string> {
    const hosts = [this.lab.client, ...this.pods.map(({ host }) => host)];
    const script = "grep -hE '^Udp:|Udp6?RcvbufErrors' /proc/net/snmp /proc/net/snmp6";
    const counters = hosts.map(async ({ name, exec }) => {
      const { stdout } = await exec('sh', ['-c', script], { reject: false });
      return `${name}:\n${stdout}`;
    });
    const agents = this.#agents.flatMap(({ log }) =>
      log.slice(-LOG_LINES).map((line) => JSON.stringify(line)),
    );
    return [...(await Promise.all(counters)), ...this.#relayLog, ...agents].join('\n');
  }

  /** Removes everything, and verifies that it is gone. */
  async destroy(): Promise<void> {
    await this.calls.stop();
    try {
      await Promise.all(this.#agents.map((agent) => agent.destroy()));
    } finally {
      await this.lab.destroy();
      rmSync(this.directory, { recursive: true, force: true });
    }
    const left = this.lab.hosts.map(({ namespace }) => `/run/netns/${namespace}`);
    assert.deepEqual(left.filter(existsSync), [], 'everything of the lab is removed');
  }
}

function readExample(): Example {
  const objects = parseAllDocuments(readFileSync(EXAMPLE, 'utf8')).map((document) =>
    document.toJS(),
  );
  const find = (kind: string) => objects.find((object) => object.kind === kind);
  const service = find('Service');
  const { annotations } = service.metadata;
  const [ipv4, ipv6] = service.status.loadBalancer.ingress;
  return {
    objects: objects.filter(({ kind }) => kind !== 'StatefulSet' && kind !== 'Pod'),
    container: find('StatefulSet').spec.template.spec.containers[0],
    vips: { 4: ipv4.ip, 6: ipv6.ip },
    first: Number.parseInt(annotations['portwide.dev/owned-ports'], 10),
    perPod: Number(annotations['portwide.dev/ports-per-pod']),
  };
}
