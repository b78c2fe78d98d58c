import { Command } from 'commander';
import { ClusterConfigError } from '../sources/kubernetes/config.ts';
import { ManifestDirectoryError } from '../sources/manifests/directory.ts';
import { addCleanupCommand } from './cleanup.ts';
import { UserError } from './errors.ts';
import { addIpvsCommand } from './ipvs-marks.ts';
import { addRenderCommand } from './render.ts';
import { addRunCommand } from './run.ts';
import { addValidateCommand } from './validate.ts';
import { VERSION } from './version.ts';

const program = new Command('portwide')
  .description('A Kubernetes node agent that replaces kube-proxy and serves all-ports Services.')
  .version(VERSION, '-V, --version');
addRunCommand(program);
addRenderCommand(program);
addValidateCommand(program);
addCleanupCommand(program);
addIpvsCommand(program);
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
  const isExpected = [UserError, ManifestDirectoryError, ClusterConfigError].some(
    (expected) => error instanceof expected,
  );
  process.stderr.write(
    `portwide: ${isExpected ? (error as Error).message : String((error as Error).stack)}\n`,
  );
  process.exit(1);
}
