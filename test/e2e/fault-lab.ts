/** A lab with an agent, for tests that inject a fault, and ask one command and the page for the cause. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createLab, type Lab, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import type { TestBrowser } from '../status/page/browser.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import type { Cause } from './fault-causes.ts';
import { FaultPage } from './fault-page.ts';
import { type Feed, ManifestFeed } from './feed.ts';

interface FaultLabOptions {
  readonly flags: readonly string[];
  readonly browser: TestBrowser;
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
  readonly #page: FaultPage;
  readonly #directory: string;
  readonly #flags: readonly string[];
  readonly #feed: Feed;
  /** Additional flags of the running agent. */
  #added: readonly string[] = [];

  private constructor(
    lab: Lab,
    feed: Feed,
    directory: string,
    page: FaultPage,
    flags: readonly string[],
  ) {
    this.lab = lab;
    // Mode nftables removes what is no longer needed after it has written what is new.
    this.agent = new Agent(lab, { syncs: 2, feed });
    this.#feed = feed;
    this.#directory = directory;
    this.#page = page;
    this.#flags = [...AGENT_FLAGS, ...flags, `--status-socket=${socketIn(directory)}`];
  }

  /** Creates a lab with three pods and a remote pod, which serve every port, and starts the agent. */
  static async start({ flags, browser, feedOf }: FaultLabOptions): Promise<FaultLab> {
    const lab = await createLab({ pods: 3, remotePods: 1 });
    await lab.client.exec('ip', ['route', 'replace', '203.0.113.0/24', 'via', lab.node.ipv4]);
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
    const feed = (await feedOf?.(lab)) ?? new ManifestFeed();
    const directory = mkdtempSync(join(tmpdir(), 'portwide-faults-'));
    const page = await FaultPage.start(browser, socketIn(directory));
    const faults = new FaultLab(lab, feed, directory, page, flags);
    await faults.restart();
    return faults;
  }

  /** Stops the agent, and starts it with additional flags. */
  async restart(...flags: readonly string[]): Promise<void> {
    await this.agent.stop();
    this.#added = flags;
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

  /** Asks the command and the page for the cause of a fault. @returns what the command printed. */
  async name(cause: Cause): Promise<string> {
    const { command, exitCode, printed } = cause;
    const answer = await this.ask(...command);
    assert.match(answer.text, printed);
    assert.equal(answer.exitCode, exitCode, answer.text);
    await this.#page.shows(cause);
    return answer.text;
  }

  /**
   * Waits until the command names the cause. The agent keeps rules of other programs for seconds, on slow machines longer
   * (agent/kept-answer.ts).
   */
  async readsRules({ command, printed }: Cause): Promise<void> {
    const isNamed = async () => printed.test((await this.ask(...command)).text);
    await waitFor('the agent reads the new rules', isNamed, 150_000);
  }

  /** Runs a command that reads the agent, or `portwide check` with the flags of the agent. */
  async ask(...args: readonly string[]): Promise<Answer> {
    const flags =
      args[0] === 'check'
        ? [...this.#feed.flags, ...this.#flags, ...this.#added]
        : [`--status-socket=${socketIn(this.#directory)}`];
    const { stdout, stderr, exitCode } = await this.lab.node.exec(PORTWIDE, [...args, ...flags], {
      reject: false,
    });
    return { text: `${stdout}\n${stderr}`, exitCode };
  }

  /** Runs `portwide trace --live`, and sends the packet once the trace is armed. */
  async traceLive(command: readonly string[], send: () => Promise<unknown>): Promise<Answer> {
    const flags = ['--live', '--seconds=2', `--status-socket=${socketIn(this.#directory)}`];
    const trace = this.lab.node.spawn(PORTWIDE, [...command, ...flags]);
    const ended = trace.then(
      ({ exitCode }) => exitCode,
      ({ exitCode }: { readonly exitCode: number | undefined }) => exitCode,
    );
    let text = '';
    for (const stream of [trace.stdout, trace.stderr]) {
      stream?.on('data', (chunk) => {
        text += String(chunk);
      });
    }
    await waitFor('the trace is armed', () => text.includes('connect now'));
    await send();
    const exitCode = await ended;
    return { text, exitCode };
  }

  async destroy(): Promise<void> {
    this.#page.close();
    await this.agent.destroy();
    await this.lab.destroy();
    rmSync(this.#directory, { recursive: true, force: true });
  }
}

function socketIn(directory: string): string {
  return join(directory, 'agent.sock');
}
