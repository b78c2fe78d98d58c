/** `portwide env`: the variables that a container gets for Services. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import type { Service } from '../api/objects.ts';
import { isDnsLabel } from '../api/read-name.ts';
import { loadOrWarn } from '../config/configuration.ts';
import { addFlags, type FlagTexts } from '../config/flags.ts';
import { ALL_SETTINGS, type RunOptions } from '../config/settings.ts';
import { ENV_FORMATS, type EnvFormat, formatVariables, isShellName } from '../envvars/format.ts';
import { containerVariables } from '../envvars/variables.ts';
import { ALL_SERVICES } from '../sources/kubernetes/resources.ts';
import { readOnce } from '../sources/read-once.ts';

interface EnvOptions {
  readonly namespace: string;
  readonly output: EnvFormat;
  readonly serviceLinks: boolean;
}

export function addEnvCommand(program: Command): void {
  const { config, kubeconfig, master, manifests } = ALL_SETTINGS;
  const command = program
    .command('env')
    .description(
      'print the variables that a container gets for Services, as the kubelet makes them',
    )
    .addOption(
      new Option('-n, --namespace <name>', 'namespace of the container')
        .argParser(namespaceName)
        .makeOptionMandatory(),
    )
    .addOption(
      new Option('-o, --output <format>', 'lines for `eval`, an object, or `env` of a container')
        .choices(ENV_FORMATS)
        .default('shell'),
    )
    .option(
      '--no-service-links',
      "those of the API server's Service alone, as with `enableServiceLinks: false`",
    );
  addFlags(command, { config, kubeconfig, master, manifests }).action(
    async (texts: FlagTexts & EnvOptions) => {
      const { options } = await loadOrWarn(texts);
      const note = (line: string) => process.stderr.write(`${line}\n`);
      process.stdout.write(env(await readServices(options, note), texts, note));
    },
  );
}

/** @throws InvalidArgumentError */
function namespaceName(given: string): string {
  if (isDnsLabel(given)) return given;
  throw new InvalidArgumentError("A namespace is a DNS label (a-z, 0-9 and '-').");
}

/** All of them, whoever serves them; as `readOnce`. */
async function readServices(options: RunOptions, note: (line: string) => void): Promise<Service[]> {
  const objects = await readOnce(options, [ALL_SERVICES], note);
  return objects.flatMap((object) => (object.kind === 'Service' ? [object] : []));
}

function env(
  services: readonly Service[],
  { namespace, output, serviceLinks }: EnvOptions,
  note: (line: string) => void,
): string {
  const variables = containerVariables(services, namespace, serviceLinks);
  if (variables.length === 0 && serviceLinks) {
    note(`no variables: namespace ${namespace} has no Service that makes some`);
  }
  if (output === 'shell') {
    const names = variables.map(({ name }) => name).filter((name) => !isShellName(name));
    if (names.length > 0) {
      const reason = 'because names of shell variables cannot begin with a digit';
      note(`left out, ${reason}: ${names.join(', ')}`);
    }
  }
  return formatVariables(variables, output);
}
