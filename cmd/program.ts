/** The commands of `portwide`, for the command line and for its man pages. */
import { Command } from 'commander';
import { refuseHelpOfUnknown } from './usage.ts';
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

/** @param named the only command needed; all commands if it is not the name of one */
export async function createProgram(named?: string): Promise<Command> {
  const program = new Command('portwide').description(
    'A Kubernetes node agent that replaces kube-proxy and serves all-ports Services.',
  );
  addVersionFlag(program, '-V, ');
  refuseHelpOfUnknown(program);
  for (const add of await adders(named)) add(program);
  addVersionCommand(program);
  return program;
}
