import { once } from 'node:events';
import { isDeepStrictEqual } from 'node:util';
import type { ResultPromise } from 'execa';
import { type Lab, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { type Feed, ManifestFeed } from './feed.ts';
import { type Manifest, nodeManifest, serviceManifest, sliceManifest } from './manifests.ts';

/** Ample, for in user-mode-linux all of it is slow; an agent that ends is noticed at once. */
const START_MS = 60_000;
const APPLY_MS = 30_000;

/** What the agent says in its log. */
export interface LogLine {
  readonly level: number;
  readonly msg: string;
  readonly [field: string]: unknown;
}

/** Flags that most tests run the agent with; pods are told by their CIDR. */
export const AGENT_FLAGS = [
  '--hostname-override=node',
  '--cluster-cidr=10.244.0.0/16,fd00:10:244::/48',
  '--iptables-min-sync-period=10ms',
  '--nftables-min-sync-period=10ms',
  '-v=3',
];
/** The same for tests that look at rules of iptables. */
export const IPTABLES_FLAGS = [...AGENT_FLAGS, '--proxy-mode=iptables'];

/** A process that a signal ended has no exit code. */
function isRunning(process: ResultPromise | undefined): process is ResultPromise {
  return process?.exitCode === null && process.signalCode === null;
}

/**
 * An agent on the node of a lab, fed by a manifest directory of its own unless told otherwise. It may
 * be killed and started again; what feeds it stays.
 */
export class Agent {
  readonly #lab: Lab;
  readonly #feed: Feed;
  #flags: readonly string[] = AGENT_FLAGS;
  #process: ResultPromise | undefined;
  readonly #syncs: number;
  readonly #env: Readonly<Record<string, string>>;
  #barriers = 0;
  readonly log: LogLine[] = [];

  /**
   * @param syncs how many syncs `apply` waits for: a mode that writes what is new before it removes
   * what is old has done all of the first when it begins with the second.
   * @param env variables of its environment, besides those of the test.
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

  /** Of its process; undefined while there is none. */
  get pid(): number | undefined {
    return this.#process?.pid;
  }

  /** Whether its process is there, with these flags. */
  runsWith(flags: readonly string[]): boolean {
    return isRunning(this.#process) && isDeepStrictEqual(this.#flags, flags);
  }

  /** The manifest directory that feeds it. */
  get directory(): string {
    if (this.#feed instanceof ManifestFeed) return this.#feed.directory;
    throw new TypeError('this agent is not fed by a directory');
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
    if (typeof early === 'string') throw new Error(`the agent ended: ${early}`);
  }

  /** Starts the agent; `ended` tells how it ended, once it has. */
  launch(flags: readonly string[] = this.#flags): { readonly ended: Promise<string> } {
    this.#flags = flags;
    this.log.length = 0;
    const args = ['run', ...this.#feed.flags, ...flags];
    const process = this.#lab.node.spawn(PORTWIDE, args, { env: this.#env });
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

  /** SIGKILL in the middle of whatever it does. */
  async kill(): Promise<void> {
    await this.#end('SIGKILL');
  }

  /** SIGTERM, as the kubelet ends it. */
  async stop(): Promise<void> {
    await this.#end('SIGTERM');
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const process = this.#process;
    this.#process = undefined;
    if (!isRunning(process)) return;
    const exited = once(process, 'exit');
    process.catch(() => {});
    process.kill(signal);
    await exited;
  }

  /** Replaces objects that were written under that name; no objects: those go. */
  write(name: string, objects: readonly Manifest[]): void {
    this.#feed.write(name, objects);
  }

  /**
   * Replaces the objects under test and waits until both families carry them: a Service without
   * endpoints comes along whose VIP must then be refused, the last of what a sync writes anew.
   */
  async apply(objects: readonly Manifest[]): Promise<void> {
    if (this.#feed.inStreams) await this.#applyToStreams(objects);
    for (let sync = 0; sync < this.#syncs; sync++) await this.#applyOnce(objects);
  }

  /** Waits until the agent has read all, for a Service and its endpoints, the last of each, serve. */
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
