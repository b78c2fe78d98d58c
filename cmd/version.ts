/** `portwide version`, and the flag `--version`. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import { withPlainHelp } from '../config/flags.ts';
import { buildInfo, VERSION } from '../process/version.ts';
import { failsWithTwo } from './usage.ts';

export function addVersionCommand(program: Command): void {
  failsWithTwo(program.command('version'))
    .description('print the version')
    .action(() => {
      process.stdout.write(`${VERSION}\n`);
    });
}

/** kube-proxy's `--version`, `--version=true`, `=false` and `=raw` (component-base/version/verflag). */
export function addVersionFlag(command: Command, short = ''): Command {
  const option = new Option(
    `${short}--version [value]`,
    'print the version and exit; raw: all version fields',
  );
  return withPlainHelp(command).addOption(option.preset('true').argParser(printVersion));
}

function printVersion(value: string): string {
  if (value === 'false') return value;
  if (value !== 'true' && value !== 'raw') {
    throw new InvalidArgumentError('Use true, false or raw.');
  }
  process.stdout.write(`${value === 'raw' ? rawVersion() : VERSION}\n`);
  process.exit(0);
}

/** Formats the build information like Go's `%#v` of Kubernetes' `version.Info`. */
export function rawVersion(version = VERSION): string {
  const fields = Object.entries(buildInfo(version)).map(
    ([name, value]) => `${name.slice(0, 1).toUpperCase()}${name.slice(1)}:${JSON.stringify(value)}`,
  );
  return `version.Info{${fields.join(', ')}}`;
}
