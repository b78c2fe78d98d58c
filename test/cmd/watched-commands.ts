/** Commands that go on until they are stopped. */
import { execa } from 'execa';
import { waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';

interface WatchedCommand {
  /** Resolves with the output that came since the last call, once it has all words. */
  next(...words: readonly string[]): Promise<string>;
  /** The output that came since the last call of `next`. */
  rest(): string;
  /** Ends standard input, as `kubectl exec` does when its user stops watching. @returns the exit status. */
  stop(): Promise<number | undefined>;
  /** Sends Ctrl-C. @returns the signal that ended the command. */
  interrupt(): Promise<string | undefined>;
}

export class WatchedCommands {
  readonly #children: { kill(signal: 'SIGKILL'): boolean }[] = [];

  start(args: readonly string[], socket: string): WatchedCommand {
    const child = execa(PORTWIDE, [...args, '--status-socket', socket], {
      reject: false,
      env: { PORTWIDE_WATCH_STDIN: '1' },
    });
    this.#children.push(child);
    let output = '';
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding('utf8').on('data', (text: string) => {
        output += text;
      });
    }
    return {
      next: async (...words) => {
        const has = () => words.every((word) => output.includes(word));
        await waitFor(`${words.join()} in the output`, has, 20_000);
        const text = output;
        output = '';
        return text;
      },
      rest: () => output,
      stop: async () => {
        child.stdin.end();
        return (await child).exitCode;
      },
      interrupt: async () => {
        child.kill('SIGINT');
        return (await child).signal;
      },
    };
  }

  /** Kills all commands. */
  kill(): void {
    for (const child of this.#children.splice(0)) child.kill('SIGKILL');
  }
}
