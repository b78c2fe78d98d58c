import { Command } from 'commander';
import { addCleanupCommand } from './cleanup.ts';
import { addDnsCommand } from './dns.ts';
import { addEnvCommand } from './env.ts';
import { forPeople } from './for-people.ts';
import { addIpvsCommand } from './ipvs-marks.ts';
import { addPolicyCommand } from './policy-explain.ts';
import { addRenderCommand } from './render.ts';
import { addRunCommand } from './run.ts';
import { addValidateCommand } from './validate.ts';
import { addVersionFlag, VERSION } from './version.ts';

const program = new Command('portwide').description(
  'A Kubernetes node agent that replaces kube-proxy and serves all-ports Services.',
);
addVersionFlag(program, '-V, ');
addRunCommand(program);
addRenderCommand(program);
addValidateCommand(program);
addEnvCommand(program);
addCleanupCommand(program);
addIpvsCommand(program);
addPolicyCommand(program);
addDnsCommand(program);
program
  .command('version')
  .description('print the version')
  .action(() => {
    process.stdout.write(`${VERSION}
`);
  });

try {
  await program.parseAsync();
} catch (error) {
  const sentence = forPeople(error);
  const text = sentence?.replaceAll('\n', '\nportwide: ') ?? String((error as Error).stack);
  process.stderr.write(`portwide: ${text}\n`);
  // A command whose status 1 means something else sets its own beforehand.
  process.exit(process.exitCode ?? 1);
}
