/** The command line. cmd/ has one file per command, which turns flags into an exit status. */
import { Command } from 'commander';
import { addVersionCommand, addVersionFlag } from './version.ts';

type Add = (program: Command) => void;

/** Loaders of the commands, in the order of `--help`. */
const COMMANDS: Readonly<Record<string, () => Promise<Add>>> = {
  run: async () => (await import('./run.ts')).addRunCommand,
  status: async () => (await import('./status.ts')).addStatusOfNodeCommand,
  get: async () => (await import('./get.ts')).addGetCommand,
  describe: async () => (await import('./describe.ts')).addDescribeCommand,
  diff: async () => (await import('./diff.ts')).addDiffCommand,
  top: async () => (await import('./top.ts')).addTopCommand,
  flows: async () => (await import('./flows.ts')).addFlowsCommand,
  render: async () => (await import('./render.ts')).addRenderCommand,
  validate: async () => (await import('./validate.ts')).addValidateCommand,
  env: async () => (await import('./env.ts')).addEnvCommand,
  cleanup: async () => (await import('./cleanup.ts')).addCleanupCommand,
  ipvs: async () => (await import('./ipvs-marks.ts')).addIpvsCommand,
  policy: async () => (await import('./policy-explain.ts')).addPolicyCommand,
  trace: async () => (await import('./trace.ts')).addTraceCommand,
  check: async () => (await import('./check.ts')).addCheckCommand,
  probe: async () => (await import('./probe.ts')).addProbeCommand,
  completion: async () => (await import('./completion.ts')).addCompletionCommand,
  dns: async () => (await import('./dns.ts')).addDnsCommand,
};

/** Loads only the named command, to save megabytes of memory; all commands if none is named. */
async function adders(named = ''): Promise<readonly Add[]> {
  // Completion is about all of them.
  const isOne = Object.hasOwn(COMMANDS, named) && named !== 'completion';
  const chosen = isOne ? [COMMANDS[named]] : Object.values(COMMANDS);
  return Promise.all(chosen.flatMap((load) => load?.() ?? []));
}

const program = new Command('portwide').description(
  'A Kubernetes node agent that replaces kube-proxy and serves all-ports Services.',
);
addVersionFlag(program, '-V, ');
for (const add of await adders(process.argv[2])) add(program);
addVersionCommand(program);

// Usage errors of commands have their own statuses, which these commands must not inherit.
program.exitOverride(({ exitCode }) => process.exit(exitCode === 0 ? 0 : 2));
const [named = ''] = process.argv.slice(2);
// Servers write logs only, and go on without them.
if (named !== 'run' && named !== 'dns') endWithOutput();

try {
  await program.parseAsync();
} catch (error) {
  // Loaded late, because it loads the netlink errors.
  const { userMessage } = await import('../process/user-message.ts');
  const sentence = userMessage(error);
  const text = sentence?.replaceAll('\n', '\nportwide: ') ?? String((error as Error).stack);
  process.stderr.write(`portwide: ${text}\n`);
  // A command in which status 1 is not an error, such as `policy explain`, has set process.exitCode.
  process.exit(process.exitCode ?? 1);
}

/** Ends the process when its output has no reader (`| head`), without a message as kubectl does, or cannot be written. */
function endWithOutput(): void {
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') process.exit(0);
    process.stderr.write(`portwide: cannot write the output: ${error.message}\n`);
    process.exit(2);
  });
}
