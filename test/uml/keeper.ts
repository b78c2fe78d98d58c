/**
 * Keeps a kernel: starts it, prints one line once it has ended, and when stdin ends, kills what is
 * left and removes the kernel's directory. Whoever starts this holds the other end of stdin, which
 * closes with the process, also where that is killed; so no kernel outlives it for long.
 */
import { spawn } from 'node:child_process';
import { openSync, rmSync } from 'node:fs';
import { join } from 'node:path';

const [directory = '', seconds = '', command = '', ...args] = process.argv.slice(2);
const output = openSync(join(directory, 'console'), 'a');
// The kernel has helpers, and a process for each process inside; they share its group.
const kernel = spawn(command, args, { detached: true, stdio: ['ignore', output, output] });

const ended = new Promise<string>((resolve) => {
  kernel.once('error', ({ message }) => resolve(message));
  kernel.once('exit', (code, signal) => resolve(signal ?? `exit code ${code}`));
});
let late = '';
const timer = setTimeout(() => {
  late = `it was not done in ${seconds} s: `;
  killGroup();
}, Number(seconds) * 1000);
void ended.then((how) => {
  clearTimeout(timer);
  killGroup();
  process.stdout.write(`${late}${how}\n`);
});
// Nobody may read any more.
process.stdout.on('error', () => undefined);

process.stdin.resume();
process.stdin.once('close', () => {
  killGroup();
  void ended.then(() => rmSync(directory, { recursive: true, force: true }));
});

function killGroup(): void {
  if (kernel.pid === undefined) return;
  try {
    process.kill(-kernel.pid, 'SIGKILL');
  } catch {
    // None of the group is left.
  }
}
