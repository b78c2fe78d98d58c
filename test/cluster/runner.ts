/** Performs steps on this machine. */
import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  closeSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { execa } from 'execa';
import { waitFor } from '../lab/wait.ts';
import type { Host, Layout } from './layout.ts';
import { type Command, describeStep, type Step } from './steps.ts';

export interface Runner {
  /** @throws Error if the step fails, or a daemon exits in the meantime. */
  perform(step: Step): Promise<void>;
  /** Ends all processes and removes everything except the report. */
  destroy(): Promise<void>;
}

interface Daemon {
  readonly process: ChildProcess;
  isStopping: boolean;
}

const DEADLINE_MS = 180_000;

/**
 * @param path of all commands
 * @param signal ends a step early
 */
export function createRunner(
  layout: Layout,
  report: string,
  path: string,
  signal: AbortSignal,
): Runner {
  const hosts = new Map<Host, ChildProcess>();
  const daemons = new Map<string, Daemon>();
  /** Aborted when a daemon exits by itself. */
  let crash = new AbortController();
  // Files that programs leave in the home or temporary directory are removed at the end.
  const env = { ...process.env, PATH: path, HOME: layout.directory, TMPDIR: layout.directory };
  mkdirSync(layout.directory, { recursive: true });
  mkdirSync(report, { recursive: true });

  const pidOf = (host: string) => {
    const pid = hosts.get(host as Host)?.pid;
    if (pid === undefined) throw new Error(`${host} does not run`);
    return pid;
  };

  /** The command with what enters the namespaces of a host. */
  const enter = (on: Host, command: Command): Command => {
    const words = command.map((word) =>
      word.replace(/^\$(.+)/, (_, host: string) => String(pidOf(host))),
    ) as [string, ...string[]];
    if (on === 'machine') return words;
    const pid = pidOf(on);
    const processes = `--pid=/proc/${pid}/ns/pid_for_children`;
    return ['nsenter', `--target=${pid}`, '--net', '--mount', '--uts', processes, '--', ...words];
  };

  const execute = async (on: Host, command: Command, cancelSignal: AbortSignal) => {
    const [program, ...args] = enter(on, command);
    await execa(program, args, { env, cancelSignal, stdin: 'ignore' });
  };

  /** Starts a command in a process group of its own, which Ctrl-C in a terminal does not reach. */
  const launch = (on: Host, command: Command, stdio: SpawnOptions['stdio']) => {
    const [program, ...args] = enter(on, command);
    return spawn(program, args, { env, stdio: stdio ?? 'ignore', detached: true });
  };

  const logOf = (name: string) => join(report, `${name}.log`);

  const launchWithLog = (on: Host, name: string, command: Command) => {
    const log = openSync(logOf(name), 'a');
    const child = launch(on, command, ['ignore', log, log]);
    closeSync(log);
    return child;
  };

  const startDaemon = (on: Host, name: string, command: Command) => {
    const daemon: Daemon = { process: launchWithLog(on, name, command), isStopping: false };
    daemons.set(name, daemon);
    daemon.process.once('exit', (code, by) => {
      if (daemon.isStopping) return;
      const last = readFileSync(logOf(name), 'utf8').trimEnd().split('\n').slice(-5).join('\n');
      crash.abort(new Error(`${name} exited: ${code ?? by}\n${last}`));
    });
  };

  const stopDaemon = async (name: string) => {
    const daemon = daemons.get(name);
    if (daemon === undefined) return;
    daemon.isStopping = true;
    daemons.delete(name);
    const { exitCode, signalCode, pid = 0 } = daemon.process;
    if (exitCode !== null || signalCode !== null) crash = new AbortController();
    signalGroup(-pid, 'SIGTERM');
    await waitFor(`end of ${name}`, () => !signalGroup(-pid, 0));
  };

  const startHost = async (on: Host) => {
    // This process ends with its standard input, so also if this program is killed. As the first
    // process of its namespace it takes all others with it, and with them mounts and interfaces.
    const init = 'exec 3<&0; echo ready; cat <&3 >/dev/null & wait $!';
    const own = ['--net', '--mount', '--uts', '--pid', '--fork', '--kill-child', '--mount-proc'];
    // Unmounts on the machine also happen here: a copy of a mount would keep a deleted network
    // namespace of another program.
    own.push('--propagation=slave');
    const command: Command = ['unshare', ...own, 'sh', '-c', init];
    const host = launch('machine', command, ['pipe', 'pipe', 'inherit']);
    hosts.set(on, host);
    if (host.stdout !== null) await Promise.race([once(host.stdout, 'data'), failureOf(host, on)]);
  };

  const test = async (on: Host, name: string, command: Command, ended: AbortSignal) => {
    const tests = launchWithLog(on, name, command);
    try {
      await once(tests, 'exit', { signal: ended });
    } finally {
      signalGroup(-(tests.pid ?? 0), 'SIGKILL');
    }
  };

  const act = async (step: Step, ended: AbortSignal): Promise<unknown> => {
    switch (step.kind) {
      case 'host':
        return startHost(step.on);
      case 'file':
        mkdirSync(dirname(step.path), { recursive: true });
        return writeFileSync(step.path, step.content);
      case 'run':
        return execute(step.on, step.command, ended);
      case 'until': {
        const succeeds = async () => {
          if (!ended.aborted) await execute(step.on, step.command, ended);
          return true;
        };
        return waitFor(describeStep(step), succeeds, DEADLINE_MS);
      }
      case 'start':
        return startDaemon(step.on, step.name, step.command);
      case 'stop':
        return stopDaemon(step.name);
      case 'test':
        return test(step.on, step.name, step.command, ended);
    }
  };

  return {
    async perform(step) {
      const ended = step.kind === 'stop' ? signal : AbortSignal.any([signal, crash.signal]);
      ended.throwIfAborted();
      try {
        await act(step, ended);
      } catch (error) {
        // The exit of a daemon is the reason, and a cancelled command its effect.
        ended.throwIfAborted();
        throw error;
      }
      ended.throwIfAborted();
    },
    async destroy() {
      for (const daemon of daemons.values()) daemon.isStopping = true;
      for (const host of [...hosts.values()].reverse()) {
        host.stdin?.end();
        if (host.exitCode === null && host.signalCode === null) await once(host, 'exit');
      }
      for (const cgroup of layout.cgroups) {
        await waitFor(`removal of ${cgroup}`, () => removeCgroup(cgroup));
      }
      rmSync(layout.directory, { recursive: true, force: true, maxRetries: 5 });
    },
  };
}

async function failureOf(process: ChildProcess, name: string): Promise<never> {
  const [code] = await once(process, 'exit');
  throw new Error(`${name} has no namespaces: unshare exited with ${code}`);
}

/** @returns whether the process group exists. */
function signalGroup(group: number, signal: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(group, signal);
  } catch {
    return false;
  }
}

/** Removes a tree of cgroups, whose files cannot be removed. Throws while processes exit. */
function removeCgroup(path: string): boolean {
  let entries: string[] = [];
  try {
    entries = readdirSync(path, { withFileTypes: true })
      .filter((entry) => entry.isDirectory())
      .map(({ name }) => name);
  } catch {
    return true;
  }
  for (const name of entries) removeCgroup(join(path, name));
  rmdirSync(path);
  return true;
}
