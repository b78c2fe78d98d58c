/** The command line: picks a command, and says why one failed. cmd/ has a file for each command: flags in, exit code out. */
import { Command } from 'commander';
import { addVersionCommand, addVersionFlag } from './version.ts';

type Add = (program: Command) => void;

/** In the order of the help. */
const COMMANDS: Readonly<Record<string, () => Promise<Add>>> = {
  run: async () => (await import('./run.ts')).addRunCommand,
  render: async () => (await import('./render.ts')).addRenderCommand,
  validate: async () => (await import('./validate.ts')).addValidateCommand,
  env: async () => (await import('./env.ts')).addEnvCommand,
  cleanup: async () => (await import('./cleanup.ts')).addCleanupCommand,
  ipvs: async () => (await import('./ipvs-marks.ts')).addIpvsCommand,
  policy: async () => (await import('./policy-explain.ts')).addPolicyCommand,
  dns: async () => (await import('./dns.ts')).addDnsCommand,
};

/** Of the command that is named, or of all: code that a process does not run takes megabytes of its memory. */
async function adders(named = ''): Promise<readonly Add[]> {
  const chosen = Object.hasOwn(COMMANDS, named) ? [COMMANDS[named]] : Object.values(COMMANDS);
  return Promise.all(chosen.flatMap((load) => load?.() ?? []));
}

const program = new Command('portwide').description(
  'A Kubernetes node agent that replaces kube-proxy and serves all-ports Services.',
);
addVersionFlag(program, '-V, ');
for (const add of await adders(process.argv[2])) add(program);
addVersionCommand(program);

try {
  await program.parseAsync();
} catch (error) {
  // It knows errors of netlink, and so what that loads.
  const { userMessage } = await import('../process/user-message.ts');
  const sentence = userMessage(error);
  const text = sentence?.replaceAll('\n', '\nportwide: ') ?? String((error as Error).stack);
  process.stderr.write(`portwide: ${text}\n`);
  // A command whose status 1 means something else sets its own beforehand.
  process.exit(process.exitCode ?? 1);
}
