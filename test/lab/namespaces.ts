/** Creates and removes network namespaces, also when the process exits early. */
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { execa } from 'execa';
import { LabError } from './errors.ts';
import type { SetupRequest } from './setup.ts';
import type { HostPlan, Topology } from './topology.ts';

/**
 * Creates the namespaces of a topology with links, addresses and routes. On failure, the
 * objects created so far remain: see removeNamespaces.
 *
 * @throws LabError `COMMAND_FAILED` or `THREAD_FAILED`
 */
export async function buildNamespaces(topology: Topology): Promise<void> {
  const hosts = topology.stages.flat();
  const setup = startSetup();
  try {
    await ipBatch(
      [],
      hosts.map(({ namespace }) => `netns add ${namespace}`),
    );
    await setup.run('sysctls', hosts);
    for (const stage of topology.stages) {
      await Promise.all(
        stage.map(({ namespace, commands }) => ipBatch(['-n', namespace], commands)),
      );
    }
    await setup.run('interfaces', hosts);
  } finally {
    await setup.stop();
  }
}

/**
 * Removes namespaces with their links. Missing namespaces are not an error.
 *
 * @throws LabError `COMMAND_FAILED`
 */
export async function removeNamespaces(namespaces: readonly string[]): Promise<void> {
  const input = removal(namespaces);
  const { stderr } = await execa('ip', ['-force', '-batch', '-'], { input, reject: false });
  const failureLines = stderr.split('\n').filter((line) => line.startsWith('Cannot remove'));
  const failures = failureLines.filter((line) => !line.endsWith('No such file or directory'));
  if (failures.length > 0) throw new LabError('COMMAND_FAILED', failures.join('; '));
}

async function ipBatch(options: readonly string[], lines: readonly string[]): Promise<void> {
  const input = `${lines.join('\n')}\n`;
  const result = await execa('ip', [...options, '-batch', '-'], { input, reject: false });
  if (result.failed) {
    const failureLines = result.stderr || result.shortMessage;
    throw new LabError('COMMAND_FAILED', `ip ${options.join(' ')}: ${failureLines}`, result);
  }
}

function startSetup() {
  const worker = new Worker(new URL('./setup.ts', import.meta.url), { execArgv: [] });
  return {
    run: async (step: SetupRequest['step'], hosts: readonly HostPlan[]) => {
      const request: SetupRequest = { step, hosts };
      worker.postMessage(request);
      // once() rejects if the thread fails.
      const [failure] = (await once(worker, 'message')) as [string | undefined];
      if (failure !== undefined) throw new LabError('THREAD_FAILED', `lab set-up: ${failure}`);
    },
    stop: async () => {
      await worker.terminate();
    },
  };
}

function removal(namespaces: readonly string[]): string {
  return namespaces.map((namespace) => `netns delete ${namespace}\n`).join('');
}

/** State that must not outlive this process. */
export interface Leftovers {
  readonly namespaces: readonly string[];
  /** Kills the processes in the namespaces at once. */
  readonly kill: () => void;
}

const guarded = new Set<Leftovers>();
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/**
 * Removes these namespaces when the process exits, by itself or by a signal.
 * @returns a function that cancels this
 */
export function guard(leftovers: Leftovers): () => void {
  if (guarded.size === 0) {
    process.on('exit', removeGuarded);
    for (const signal of SIGNALS) process.on(signal, endBySignal);
  }
  guarded.add(leftovers);
  return () => {
    if (!guarded.delete(leftovers) || guarded.size > 0) return;
    process.off('exit', removeGuarded);
    for (const signal of SIGNALS) process.off(signal, endBySignal);
  };
}

function removeGuarded(): void {
  const all = [...guarded];
  guarded.clear();
  if (all.length === 0) return;
  for (const { kill } of all) kill();
  const input = removal(all.flatMap(({ namespaces }) => namespaces));
  spawnSync('ip', ['-force', '-batch', '-'], { input });
}

function endBySignal(signal: NodeJS.Signals): void {
  removeGuarded();
  for (const each of SIGNALS) process.off(each, endBySignal);
  process.off('exit', removeGuarded);
  // If there are other listeners, they decide on the signal; otherwise the signal has its default
  // effect.
  if (process.listenerCount(signal) === 0) process.kill(process.pid, signal);
}
