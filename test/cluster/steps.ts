/** The steps of a run, as data: a dry run prints them, `runner.ts` performs them. */
import type { Host, Layout } from './layout.ts';

export type Command = readonly [string, ...string[]];

export type Step =
  /** Makes the namespaces of a host: network, mounts, processes, host name. */
  | { readonly kind: 'host'; readonly on: Host }
  | { readonly kind: 'file'; readonly path: string; readonly content: string }
  /** Runs a command to its end. `$node-1` in its arguments becomes the process ID of that host. */
  | { readonly kind: 'run'; readonly on: Host; readonly command: Command }
  /** Starts a daemon, whose output goes to `<name>.log` in the report. */
  | { readonly kind: 'start'; readonly on: Host; readonly name: string; readonly command: Command }
  /** Repeats a command until it succeeds. */
  | { readonly kind: 'until'; readonly on: Host; readonly command: Command }
  | { readonly kind: 'stop'; readonly name: string }
  /** Runs tests: they may fail, and have no time limit. Output goes to `<name>.log`. */
  | { readonly kind: 'test'; readonly on: Host; readonly name: string; readonly command: Command };

/** For a dry run: one line for each step, and files with their content. */
export function describeStep(step: Step): string {
  switch (step.kind) {
    case 'host':
      return `[machine] unshare: namespaces of ${step.on}`;
    case 'file':
      return `[machine] write ${step.path}\n${step.content.trimEnd().replace(/^/gm, '    ')}`;
    case 'stop':
      return `[machine] stop ${step.name}`;
    case 'run':
      return `[${step.on}] ${quote(step.command)}`;
    case 'until':
      return `[${step.on}] until ${quote(step.command)}`;
    default:
      return `[${step.on}] ${quote(step.command)} >${step.name}.log`;
  }
}

export function describeRemoval({ directory, cgroups }: Layout): string {
  return [
    '[machine] end all namespaces, with their processes, mounts and interfaces',
    ...cgroups.map((cgroup) => `[machine] remove cgroup ${cgroup}`),
    `[machine] rm -r ${directory}`,
  ].join('\n');
}

/** @returns the command as a line for a shell. */
function quote(command: Command): string {
  const plain = /^[\w%+,./:=@^-]+$/;
  return command
    .map((word) => (plain.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`))
    .join(' ');
}

export const run = (on: Host, ...command: Command): Step => ({ kind: 'run', on, command });
export const until = (on: Host, ...command: Command): Step => ({ kind: 'until', on, command });
export const start = (on: Host, name: string, ...command: Command): Step => ({
  kind: 'start',
  on,
  name,
  command,
});
export const file = (path: string, content: string | object): Step => ({
  kind: 'file',
  path,
  content: typeof content === 'string' ? content : `${JSON.stringify(content, undefined, 2)}\n`,
});
