/** A `kubectl` for tests of the plugin: knows pods, and runs what `exec` would run in a pod. */
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { PORTWIDE } from '../portwide.ts';

const PLUGIN = new URL('../../kubectl-portwide', import.meta.url).pathname;

const FORWARD = new URL('./fake-port-forward.ts', import.meta.url).pathname;

/** Records its arguments, one call a line. `exec` uses the socket of the pod. */
const SCRIPT = `#!/bin/sh
here=$(dirname -- "$0")
printf '%s\\n' "$*" >>"$here/calls"
for argument in "$@"; do
  case $argument in --server=*) server=\${argument#*=} ;; esac
done
while [ "\${1#--}" != "$1" ]; do shift; done
case $1-$2 in
  get-pods) cat "$here/pods" || exit 1 ;;
  get-pod) cat "$here/node-of-$4-$5" ;;
  exec-*)
    for pod in "$@"; do
      case $pod in agent-*) break ;; esac
    done
    [ ! -e "$here/$pod.fails" ] || { echo "error: pod $pod is broken" >&2; exit 1; }
    while [ "$1" != -- ]; do shift; done
    shift
    variable=
    if [ "$1" = env ]; then variable=$2; shift 2; fi
    [ "$1" = /opt/portwide/portwide ] || exit 99
    shift
    # The command has a standard input that ends with this process, as in a pod.
    mkfifo "$here/stdin-$$"
    (exec 4>&-; . "$here/$pod.run") <"$here/stdin-$$" &
    exec 4>"$here/stdin-$$"
    wait $!
    ;;
  get---raw)
    exec '${process.execPath}' -e 'fetch(process.argv[1]).then((answer) => process.exit(answer.ok ? 0 : 1), () => process.exit(1))' "$server\${3#/}"
    ;;
  port-forward-*)
    agent=\${4#pod/}
    echo $$ >"$here/forwarder"
    [ ! -e "$here/$agent.fails" ] || { echo "error: pod $agent is broken" >&2; exit 1; }
    exec '${process.execPath}' '${FORWARD}' "$7" "$(cat "$here/$agent.page")"
    ;;
  *) exit 98 ;;
esac
`;

export interface FakeKubectl extends Disposable {
  /** Adds a node with an agent. @param prefix words before the command, such as `ip netns exec NAME`. */
  addAgent(node: string, socket: string, prefix?: string): void;
  /** Adds a node whose agent cannot be reached. */
  addBrokenAgent(node: string): void;
  addPod(namespace: string, name: string, node: string): void;
  /** Arguments of all calls. */
  calls(): string[];
  run(...args: readonly string[]): Promise<{ stdout: string; stderr: string; exitCode?: number }>;
  /** Starts the plugin, for \`--watch\` and \`dashboard\`. */
  start(...args: readonly string[]): StartedPlugin;
  /** Process id of the latest \`port-forward\`. */
  forwarder(): number;
  /** Adds a program to its \`PATH\`. It writes its arguments to the file that is returned. */
  addProgram(name: string): string;
  /** Names of temporary files of the plugin. */
  temporaryFiles(): string[];
}

export interface StartedPlugin {
  kill(signal?: NodeJS.Signals): void;
  /** Standard output so far. */
  output(): string;
  readonly ended: Promise<{ readonly stderr: string; readonly exitCode?: number }>;
}

/** @param env variables for the plugin. */
export function fakeKubectl(env: Readonly<Record<string, string>> = {}): FakeKubectl {
  const directory = mkdtempSync(join(tmpdir(), 'portwide-kubectl-'));
  const file = (name: string) => join(directory, name);
  const append = (name: string, text: string) => writeFileSync(file(name), text, { flag: 'a' });
  append('kubectl', SCRIPT);
  chmodSync(file('kubectl'), 0o755);
  append('pods', '');
  append('calls', '');
  mkdirSync(file('tmp'));
  const PATH = `${directory}:${process.env.PATH}`;
  const options = { reject: false, env: { PATH, TMPDIR: file('tmp'), ...env } } as const;
  return {
    addAgent(node, socket, prefix = '') {
      append('pods', `${node} agent-${node}\n`);
      append(`agent-${node}.page`, socket);
      append(
        `agent-${node}.run`,
        `exec ${prefix} env "\${variable:-_=}" '${PORTWIDE}' "$@" --status-socket '${socket}'\n`,
      );
    },
    addBrokenAgent(node) {
      append('pods', `${node} agent-${node}\n`);
      append(`agent-${node}.fails`, '');
    },
    addPod: (namespace, name, node) => append(`node-of-${namespace}-${name}`, node),
    calls: () => readFileSync(file('calls'), 'utf8').split('\n').slice(0, -1),
    run: async (...args) => {
      const { stdout, stderr, exitCode } = await execa(PLUGIN, args, options);
      return { stdout, stderr, ...(exitCode === undefined ? {} : { exitCode }) };
    },
    start: (...args) => {
      const child = execa(PLUGIN, args, options);
      let output = '';
      child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
        output += chunk;
      });
      return {
        kill: (signal = 'SIGKILL') => void child.kill(signal),
        output: () => output,
        // It ends when the last process that has its output does.
        ended: child.then(({ stderr, exitCode }) => ({
          stderr,
          ...(exitCode === undefined ? {} : { exitCode }),
        })),
      };
    },
    forwarder: () => Number(readFileSync(file('forwarder'), 'utf8')),
    addProgram: (name) => {
      append(name, `#!/bin/sh\necho "$@" >>'${file(`${name}.calls`)}'\n`);
      chmodSync(file(name), 0o755);
      return file(`${name}.calls`);
    },
    temporaryFiles: () => readdirSync(file('tmp')),
    [Symbol.dispose]: () => rmSync(directory, { recursive: true, force: true }),
  };
}
