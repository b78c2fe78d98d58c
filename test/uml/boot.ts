/**
 * Boots user-mode-linux (UML): a Linux kernel that runs as a process. It has IPVS and dummy
 * devices, which the machine's kernel may lack. Its root file system is the machine's, read-only;
 * init.sh is its first process. It has one CPU, and a fork takes some 30 ms. PORTWIDE_KERNEL=6.1 boots
 * a stock kernel in QEMU instead, in the same way.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, statfsSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { kernelCommand, MEMORY_GIB } from './kernels.ts';

/** Path of the kernel's directory inside UML. */
export const INSIDE = '/run/host';

const INIT = new URL('./init.sh', import.meta.url).pathname;
const KEEPER = new URL('./keeper.ts', import.meta.url).pathname;
const SHARED_MEMORY = '/dev/shm';
/** Number of lines of console and command output that a failure message quotes. */
const TAIL_LINES = 50;

export interface BootOptions {
  /**
   * Command that runs inside, in the root of the checkout, as root, with node_modules/.bin in its
   * PATH.
   */
  readonly command: readonly string[];
  /** Files of the kernel's directory, by name. */
  readonly files?: Readonly<Record<string, string>>;
  /** The kernel is killed after this time. */
  readonly timeoutSeconds: number;
  /** The first process; default init.sh. */
  readonly init?: string;
}

/** A running kernel. */
export interface Uml {
  /** How the kernel ended; undefined while it runs. */
  readonly ended: string | undefined;
  /** Content of a file in the kernel's directory; empty if there is no such file. */
  read(name: string): string;
  /** The last lines of the console and of the command's output. */
  output(): string;
  /** Kills the kernel if it still runs, and removes the directory. */
  stop(): Promise<void>;
}

/** Starts a kernel. It does not outlive this process, even if that is killed. */
export function bootUml({ command, files = {}, timeoutSeconds, init = INIT }: BootOptions): Uml {
  const directory = mkdtempSync(join(tmpdir(), 'portwide-uml-'));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(directory, name), text);

  const kernel = kernelCommand({ directory, init, command });
  const keeper = spawn(process.execPath, [KEEPER, directory, String(timeoutSeconds), ...kernel], {
    // A Ctrl-C in the terminal must not kill it before the tests have ended.
    detached: true,
    env: { ...process.env, TMPDIR: memoryDirectory(directory) },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const closed = once(keeper, 'close');
  let ended: string | undefined;
  keeper.stdout.setEncoding('utf8').on('data', (text: string) => {
    ended ??= text.trim();
  });
  keeper.once('close', () => {
    ended ??= 'killed with its keeper';
  });
  keeper.stdin.on('error', () => undefined);

  const read = (name: string) => readIfThere(join(directory, name));
  return {
    get ended() {
      return ended;
    },
    read,
    output: () => ['console', 'output'].map((name) => tail(name, read(name))).join('\n'),
    stop: async () => {
      keeper.stdin.end();
      await closed;
    },
  };
}

/** Directory of the kernel's memory, an unlinked file: a tmpfs if it has room. */
function memoryDirectory(directory: string): string {
  try {
    const { bavail, bsize } = statfsSync(SHARED_MEMORY);
    return bavail * bsize > MEMORY_GIB * 2 ** 30 ? SHARED_MEMORY : directory;
  } catch {
    return directory;
  }
}

function readIfThere(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}

function tail(name: string, text: string): string {
  const lines = text.trimEnd().split('\n').slice(-TAIL_LINES);
  return [`--- last lines of the ${name}:`, ...lines].join('\n');
}
