/**
 * Supervises a kernel: starts it, prints one line when it has ended, and on end of stdin kills the
 * rest and removes the kernel's directory. The parent holds the other end of stdin, which closes
 * when the parent exits or is killed. So no kernel outlives its parent for long.
 */
import { spawn } from 'node:child_process';
import { openSync, rmSync } from 'node:fs';
import { join } from 'node:path';

const [directory = '', seconds = '', command = '', ...args] = process.argv.slice(2);
const output = openSync(join(directory, 'console'), 'a');
// The kernel has helper processes, and one process for each process inside; they share its process
// group.
const kernel = spawn(command, args, { detached: true, stdio: ['ignore', output, output] });

const ended = new Promise<string>((resolve) => {
  kernel.once('error', ({ message }) => resolve(message));
  kernel.once('exit', (code, signal) => resolve(signal ?? `exit code ${code}`));
});
let late = '';
const timer = setTimeout(() => {
  late = `not finished within ${seconds} s:`;
  killGroup();
}, Number(seconds) * 1000);
void ended.then((how) => {
  clearTimeout(timer);
  killGroup();
  process.stdout.write(`${late}${how}\n`);
});
// The reader may have exited.
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
    // No process of the group is left.
  }
}
