import { once } from 'node:events';
import { mkdtempSync, renameSync, rmSync, unlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ResultPromise } from 'execa';
import { type Lab, waitFor } from '../lab/lab.ts';
import { type Manifest, nodeManifest, serviceManifest } from './manifests.ts';

const PORTWIDE = new URL('../../portwide', import.meta.url).pathname;
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
  '-v=3',
];

/**
 * An agent on the node of a lab, fed by a manifest directory of its own. It may be killed and
 * started again; the directory stays.
 */
export class Agent {
  readonly #lab: Lab;
  readonly #directory = mkdtempSync(join(tmpdir(), 'portwide-e2e-'));
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
  constructor(lab: Lab, { syncs = 1, env = {} as Readonly<Record<string, string>> } = {}) {
    this.#lab = lab;
    this.#syncs = syncs;
    this.#env = env;
    this.write('node', [nodeManifest([lab.node.ipv4, lab.node.ipv6])]);
  }

  get directory(): string {
    return this.#directory;
  }

  /** Starts the agent and waits until it has synced both families. */
  async start(flags: readonly string[] = this.#flags): Promise<void> {
    this.#flags = flags;
    this.log.length = 0;
    const args = ['run', `--manifests=${this.#directory}`, ...flags];
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
      () => 'ended',
      (error: unknown) => String(error),
    );
    const synced = waitFor(
      'the agent synced both families',
      () => new Set(this.logged('synced').map(({ family }) => family)).size === 2,
      START_MS,
    );
    const early = await Promise.race([synced, ended]);
    if (typeof early === 'string') throw new Error(`the agent ended: ${early} ${errors}`);
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
    if (process === undefined || process.exitCode !== null) return;
    const exited = once(process, 'exit');
    process.catch(() => {});
    process.kill(signal);
    await exited;
  }

  /** Replaces one file of the directory, atomically; no objects: the file goes. */
  write(name: string, objects: readonly Manifest[]): void {
    const file = join(this.#directory, `${name}.json`);
    if (objects.length === 0) {
      unlinkSync(file);
      return;
    }
    const draft = join(this.#directory, `.${name}.draft`);
    writeFileSync(draft, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: objects }));
    renameSync(draft, file);
  }

  /**
   * Replaces the objects under test and waits until both families carry them: a Service without
   * endpoints comes along whose VIP must then be refused, the last of what a sync writes anew.
   */
  async apply(objects: readonly Manifest[]): Promise<void> {
    for (let sync = 0; sync < this.#syncs; sync++) await this.#applyOnce(objects);
  }

  async #applyOnce(objects: readonly Manifest[]): Promise<void> {
    this.#barriers = (this.#barriers + 1) % 200;
    const vips = [
      `10.96.200.${this.#barriers + 1}`,
      `fd00:10:96::c8${(this.#barriers + 16).toString(16)}`,
    ];
    const barrier = serviceManifest('barrier', {
      spec: { clusterIPs: vips, ports: [{ port: 9 }] },
    });
    this.write('objects', [...objects, barrier]);
    for (const vip of vips) {
      await waitFor(
        `the rules for ${vip} are there`,
        async () => {
          const { outcome } = await this.#lab.client.tcp(vip, 9, { timeoutMs: 100 });
          return outcome === 'refused';
        },
        APPLY_MS,
      );
    }
  }

  async destroy(): Promise<void> {
    await this.#end('SIGKILL');
    rmSync(this.#directory, { recursive: true, force: true });
  }
}
