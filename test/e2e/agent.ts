import { once } from 'node:events';
import { isDeepStrictEqual } from 'node:util';
import type { ResultPromise } from 'execa';
import { type Lab, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { type Feed, ManifestFeed } from './feed.ts';
import { type Manifest, nodeManifest, serviceManifest, sliceManifest } from './manifests.ts';

/** Long, because everything is slow in user-mode-linux. An agent that exits is detected at once. */
const START_MS = 60_000;
const APPLY_MS = 30_000;

/** A line of the agent's log. */
export interface LogLine {
  readonly level: number;
  readonly msg: string;
  readonly [field: string]: unknown;
}

/** No status API unless flags set it: agents of several nodes share the file system. */
export const NO_STATUS = ['--status-bind-address=none', '--status-socket=none'];

/** Default flags of the agent; pods are detected by CIDR. */
export const AGENT_FLAGS = [
  '--hostname-override=node',
  '--cluster-cidr=10.244.0.0/16,fd00:10:244::/48',
  '--iptables-min-sync-period=10ms',
  '--nftables-min-sync-period=10ms',
  '-v=3',
];
/** The same for tests of iptables rules. */
export const IPTABLES_FLAGS = [...AGENT_FLAGS, '--proxy-mode=iptables'];

/** The status page of an agent with `PAGE_FLAGS`. */
export const PAGE_ADDRESS = '127.0.0.1:10270';
export const PAGE_FLAGS = [
  ...AGENT_FLAGS,
  `--status-bind-address=${PAGE_ADDRESS}`,
  '--proxy-mode=nftables',
];

/** A process killed by a signal has no exit code. */
function isRunning(process: ResultPromise | undefined): process is ResultPromise {
  const { exitCode, signalCode } = process?.nodeChildProcess ?? {};
  return exitCode === null && signalCode === null;
}

/**
 * An agent on the node of a lab, fed by its own manifest directory unless another feed is given. It
 * can be killed and restarted; its feed remains.
 */
export class Agent {
  readonly #lab: Lab;
  readonly #feed: Feed;
  #flags: readonly string[] = AGENT_FLAGS;
  #process: ResultPromise | undefined;
  readonly #syncs: number;
  readonly #env: Readonly<Record<string, string>>;
  #barriers = 0;
  /** The launcher that the next start runs. */
  program = PORTWIDE;
  /** Flags that come first; empty for versions without a status API. */
  firstFlags: readonly string[] = NO_STATUS;
  readonly log: LogLine[] = [];

  /**
   * @param syncs number of syncs that `apply` waits for. A mode that writes new rules before it
   * removes old ones has completed the first sync when the second begins.
   * @param env additional environment variables.
   */
  constructor(
    lab: Lab,
    {
      syncs = 1,
      feed = new ManifestFeed() as Feed,
      env = {} as Readonly<Record<string, string>>,
    } = {},
  ) {
    this.#lab = lab;
    this.#feed = feed;
    this.#syncs = syncs;
    this.#env = env;
    this.write('node', [nodeManifest([lab.node.ipv4, lab.node.ipv6])]);
  }

  /** Process id; undefined while not running. */
  get pid(): number | undefined {
    return this.#process?.pid;
  }

  /** Whether the agent runs with these flags. */
  runsWith(flags: readonly string[]): boolean {
    return isRunning(this.#process) && isDeepStrictEqual(this.#flags, flags);
  }

  /** Directory of the manifest feed. */
  get directory(): string {
    if (this.#feed instanceof ManifestFeed) return this.#feed.directory;
    throw new TypeError('this agent has no manifest directory');
  }

  /** Starts the agent and waits until it has synced both families. */
  async start(flags: readonly string[] = this.#flags): Promise<void> {
    const { ended } = this.launch(flags);
    const synced = waitFor(
      'the agent synced both families',
      () => new Set(this.logged('synced').map(({ family }) => family)).size === 2,
      START_MS,
    );
    const early = await Promise.race([synced, ended]);
    if (typeof early === 'string') throw new Error(`the agent exited: ${early}`);
  }

  /** Starts the agent. `ended` is set when it exits. */
  launch(flags: readonly string[] = this.#flags): { readonly ended: Promise<string> } {
    this.#flags = flags;
    this.log.length = 0;
    const args = ['run', ...this.firstFlags, ...this.#feed.flags, ...flags];
    const process = this.#lab.node.spawn(this.program, args, { env: this.#env });
    this.#process = process;
    process.stdout?.setEncoding('utf8');
    let rest = '';
    process.stdout?.on('data', (chunk: string) => {
      const lines = (rest + chunk).split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) this.log.push(JSON.parse(line) as LogLine);
    });
    let errors = '';
    process.stderr?.on('data', (chunk) => {
      errors += String(chunk);
    });
    const ended = process.then(
      () => `ended ${errors}`,
      (error: unknown) => `${error} ${errors}`,
    );
    return { ended };
  }

  logged(message: string): LogLine[] {
    return this.log.filter(({ msg }) => msg === message);
  }

  /** Sends SIGKILL, whatever the agent is doing. */
  async kill(): Promise<void> {
    await this.#end('SIGKILL');
  }

  /** Sends SIGTERM, as the kubelet does. */
  async stop(): Promise<void> {
    await this.#end('SIGTERM');
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const process = this.#process;
    this.#process = undefined;
    if (!isRunning(process)) return;
    const exited = once(process.nodeChildProcess, 'exit');
    process.catch(() => {});
    process.kill(signal);
    await exited;
  }

  /** Replaces the objects last written under `name`; an empty list removes them. */
  write(name: string, objects: readonly Manifest[]): void {
    this.#feed.write(name, objects);
  }

  /**
   * Replaces the objects under test and waits until both families have them. For this a Service
   * without endpoints is added, because a sync writes its rejection last.
   */
  async apply(objects: readonly Manifest[]): Promise<void> {
    if (this.#feed.inStreams) await this.#applyToStreams(objects);
    for (let sync = 0; sync < this.#syncs; sync++) await this.#applyOnce(objects);
  }

  /**
   * Waits until the agent has read everything: until a Service with an endpoint, written last,
   * answers.
   */
  async #applyToStreams(objects: readonly Manifest[]): Promise<void> {
    const vips = this.#freshVips();
    const pods = this.#lab.pods.slice(0, 1);
    this.write('objects', [
      ...objects,
      serviceManifest('last', { spec: { clusterIPs: vips, ports: [{ port: 9 }] } }),
      ...([4, 6] as const).map((family) =>
        sliceManifest('last', family, pods, { ports: [{ name: '', port: 9 }] }),
      ),
    ]);
    await this.#feed.written();
    for (const vip of vips) await this.#outcome(vip, 'answered');
  }

  async #applyOnce(objects: readonly Manifest[]): Promise<void> {
    const vips = this.#freshVips();
    const barrier = serviceManifest('barrier', {
      spec: { clusterIPs: vips, ports: [{ port: 9 }] },
    });
    this.write('objects', [...objects, barrier]);
    await this.#feed.written();
    for (const vip of vips) await this.#outcome(vip, 'refused');
  }

  #freshVips(): string[] {
    this.#barriers = (this.#barriers + 1) % 200;
    const [decimal, hex] = [this.#barriers + 1, (this.#barriers + 16).toString(16)];
    return [`10.96.200.${decimal}`, `fd00:10:96::c8${hex}`];
  }

  async #outcome(vip: string, expected: 'answered' | 'refused'): Promise<void> {
    await waitFor(
      `${vip} is ${expected}`,
      async () => {
        const { outcome } = await this.#lab.client.tcp(vip, 9, { timeoutMs: 100 });
        return outcome === expected;
      },
      APPLY_MS,
    );
  }

  async destroy(): Promise<void> {
    await this.#end('SIGKILL');
    this.#feed.destroy();
  }
}
