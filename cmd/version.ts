/** `portwide version`, and the flag of that name. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import { withPlainHelp } from '../config/flags.ts';
import { buildInfo, VERSION } from '../process/version.ts';

export function addVersionCommand(program: Command): void {
  program
    .command('version')
    .description('print the version')
    .action(() => {
      process.stdout.write(`${VERSION}\n`);
    });
}

/** kube-proxy's `--version`, `--version=true`, `=false` and `=raw` (component-base/version/verflag). */
export function addVersionFlag(command: Command, short = ''): Command {
  const option = new Option(`${short}--version [how]`, 'print the version and end; raw: all of it');
  return withPlainHelp(command).addOption(option.preset('true').argParser(printVersion));
}

function printVersion(how: string): string {
  if (how === 'false') return how;
  if (how !== 'true' && how !== 'raw') {
    throw new InvalidArgumentError('It must be true, false or raw.');
  }
  process.stdout.write(`${how === 'raw' ? rawVersion() : VERSION}\n`);
  process.exit(0);
}

/** In the form in which Go prints Kubernetes' `version.Info`. */
export function rawVersion(version = VERSION): string {
  const fields = Object.entries(buildInfo(version)).map(
    ([name, value]) => `${name.slice(0, 1).toUpperCase()}${name.slice(1)}:${JSON.stringify(value)}`,
  );
  return `version.Info{${fields.join(', ')}}`;
}
