/** Jobs that run in a child process, in a network namespace. A script serves jobs by name. */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';

/** The jobs of a script. Requests and reports are JSON. */
type Jobs = Readonly<Record<string, (request: never) => Promise<unknown>>>;

/** The result of a job. */
export type Report<Served extends Jobs, Name extends keyof Served> = NonNullable<
  Awaited<ReturnType<Served[Name]>>
>;

/**
 * @param script in this directory, which serves `Served`
 * @param wrapper a command that runs Node.js
 * @returns a function that runs a job; its report is null if the process exited without one.
 */
export function jobsOf<Served extends Jobs>(script: string, wrapper: readonly string[] = []) {
  const path = fileURLToPath(new URL(script, import.meta.url));
  return async <Name extends keyof Served & string>(
    namespace: string,
    name: Name,
    request: Parameters<Served[Name]>[0],
  ): Promise<Awaited<ReturnType<Served[Name]>>> => {
    const args = ['netns', 'exec', namespace, ...wrapper, process.execPath, path, name];
    const { stdout } = await execa('ip', args, { input: JSON.stringify(request) });
    return JSON.parse(stdout || 'null');
  };
}

/** For the script: runs the job the process was started for, prints the report, and exits. */
export async function serve(jobs: Jobs): Promise<void> {
  const { [process.argv[2] ?? '']: job } = jobs;
  if (job === undefined) throw new TypeError(`expected ${Object.keys(jobs).join(' or ')}`);
  const report = await job(JSON.parse(readFileSync(process.stdin.fd, 'utf8')) as never);
  process.stdout.write(JSON.stringify(report ?? null), () => process.exit());
}
