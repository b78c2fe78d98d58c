/** A lab with an agent, for tests that inject a fault and ask one command for the cause. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createLab, type Lab, type Outcome, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import type { Feed } from './feed.ts';

/** Flags of the agent and of `portwide check` in these tests, without the CIDRs. */
const NODE_FLAG = '--hostname-override=node';

interface FaultLabOptions {
  readonly flags: readonly string[];
  /** Default: manifests. */
  readonly feedOf?: (lab: Lab) => Promise<Feed>;
}

/** What a command printed, and its exit status. */
interface Answer {
  readonly text: string;
  readonly exitCode: number | undefined;
}

export class FaultLab {
  readonly lab: Lab;
  readonly agent: Agent;
  readonly #directory: string;
  readonly #flags: readonly string[];

  private constructor(lab: Lab, agent: Agent, directory: string, flags: readonly string[]) {
    this.lab = lab;
    this.agent = agent;
    this.#directory = directory;
    this.#flags = [...AGENT_FLAGS, ...flags, `--status-socket=${join(directory, 'agent.sock')}`];
  }

  /** Creates a lab with three pods and a remote pod, which serve every port, and starts the agent. */
  static async start({ flags, feedOf }: FaultLabOptions): Promise<FaultLab> {
    const lab = await createLab({ pods: 3, remotePods: 1 });
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
    const feed = await feedOf?.(lab);
    // Mode nftables removes what is no longer needed after it has written what is new.
    const agent = new Agent(lab, { syncs: 2, ...(feed === undefined ? {} : { feed }) });
    const directory = mkdtempSync(join(tmpdir(), 'portwide-faults-'));
    const faults = new FaultLab(lab, agent, directory, flags);
    await faults.restart();
    return faults;
  }

  /** Stops the agent, and starts it with additional flags. */
  async restart(...flags: readonly string[]): Promise<void> {
    await this.agent.stop();
    await this.agent.start([...this.#flags, ...flags]);
  }

  /** Starts the agent, and does not wait until it has synced. */
  launch(): void {
    this.agent.launch(this.#flags);
  }

  /** The host of a pod: `pod-1` is 0. */
  pod(index: number) {
    const pod = this.lab.pods[index];
    assert.ok(pod !== undefined);
    return pod;
  }

  get remote() {
    const [remote] = this.lab.remotePods;
    assert.ok(remote !== undefined);
    return remote;
  }

  /** Runs a command that reads the agent. */
  async ask(...args: readonly string[]): Promise<Answer> {
    return this.#run([...args, `--status-socket=${join(this.#directory, 'agent.sock')}`]);
  }

  /** Runs `portwide check` with flags of the agent; `source` says where the objects are. */
  async check(...flags: readonly string[]): Promise<Answer> {
    return this.#run(['check', NODE_FLAG, ...flags]);
  }

  async #run(args: readonly string[]): Promise<Answer> {
    const { stdout, stderr, exitCode } = await this.lab.node.exec(PORTWIDE, args, {
      reject: false,
    });
    return { text: `${stdout}\n${stderr}`, exitCode };
  }

  /** Runs `portwide trace --live`, and sends the packet once the trace is armed. */
  async traceLive(
    args: readonly string[],
    send: () => Promise<Outcome>,
  ): Promise<Answer & { readonly outcome: Outcome }> {
    const command = this.lab.node.spawn(PORTWIDE, [
      'trace',
      ...args,
      '--live',
      '--seconds=2',
      `--status-socket=${join(this.#directory, 'agent.sock')}`,
    ]);
    const ended = command.then(
      ({ exitCode }) => exitCode,
      ({ exitCode }: { readonly exitCode: number | undefined }) => exitCode,
    );
    let text = '';
    for (const stream of [command.stdout, command.stderr]) {
      stream?.on('data', (chunk) => {
        text += String(chunk);
      });
    }
    await waitFor('the trace is armed', () => text.includes('connect now'));
    const outcome = await send();
    const exitCode = await ended;
    return { text, exitCode, outcome };
  }

  async destroy(): Promise<void> {
    await this.agent.destroy();
    await this.lab.destroy();
    rmSync(this.#directory, { recursive: true, force: true });
  }
}
