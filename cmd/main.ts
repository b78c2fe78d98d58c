import { Command } from 'commander';
import { ConfigurationError } from '../config/errors.ts';
import { ClusterConfigError } from '../sources/kubernetes/config.ts';
import { ManifestDirectoryError } from '../sources/manifests/directory.ts';
import { addCleanupCommand } from './cleanup.ts';
import { addDnsCommand } from './dns.ts';
import { addEnvCommand } from './env.ts';
import { UserError } from './errors.ts';
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
  const isExpected = [
    UserError,
    ConfigurationError,
    ManifestDirectoryError,
    ClusterConfigError,
  ].some((expected) => error instanceof expected);
  const text = isExpected ? (error as Error).message : String((error as Error).stack);
  process.stderr.write(`portwide: ${text.replaceAll('\n', isExpected ? '\nportwide: ' : '\n')}\n`);
  process.exit(1);
}
