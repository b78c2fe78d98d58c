/** `portwide env`: the environment variables that a container gets for Services. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import type { Service } from '../api/objects.ts';
import { ordinalOf } from '../api/owned-ports.ts';
import { isDnsLabel, isDnsSubdomain } from '../api/read-name.ts';
import { loadOrWarn } from '../config/configuration.ts';
import { addFlags, type FlagTexts } from '../config/flags.ts';
import { ALL_SETTINGS, type RunOptions } from '../config/settings.ts';
import { ENV_FORMATS, type EnvFormat, formatVariables, isShellName } from '../envvars/format.ts';
import { containerVariables, type EnvVar, ownedPortVariables } from '../envvars/variables.ts';
import { ALL_SERVICES } from '../sources/kubernetes/resources.ts';
import { readOnce } from '../sources/read-once.ts';

interface EnvOptions {
  readonly namespace: string;
  readonly output: EnvFormat;
  readonly serviceLinks: boolean;
  readonly pod?: string;
}

export function addEnvCommand(program: Command): void {
  const { config, kubeconfig, master, manifests } = ALL_SETTINGS;
  const command = program
    .command('env')
    .description(
      'print the environment variables for Services that the kubelet sets in a container',
    )
    .addOption(
      new Option('-n, --namespace <name>', 'namespace of the container')
        .argParser(namespaceName)
        .makeOptionMandatory(),
    )
    .addOption(
      new Option(
        '-o, --output <format>',
        'shell: export lines for `eval`; json: an object; k8s: the `env` field of a container',
      )
        .choices(ENV_FORMATS)
        .default('shell'),
    )
    .addOption(
      new Option(
        '--pod <name>',
        'add NAME_OWNED_PORTS, the ports of this pod, for each Service of the namespace with owned ports',
      ).argParser(podName),
    )
    .option(
      '--no-service-links',
      "only the variables of the API server's Service, as with `enableServiceLinks: false`",
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
  throw new InvalidArgumentError("Use a namespace name: a DNS label (a-z, 0-9 and '-').");
}

/** @throws InvalidArgumentError */
function podName(given: string): string {
  if (isDnsSubdomain(given)) return given;
  throw new InvalidArgumentError("Use a pod name: lower-case letters, digits, '-' and '.'.");
}

/** Lists all Services once, including Services of another proxy (service-proxy-name label). */
async function readServices(options: RunOptions, note: (line: string) => void): Promise<Service[]> {
  const objects = await readOnce(options, [ALL_SERVICES], note);
  return objects.flatMap((object) => (object.kind === 'Service' ? [object] : []));
}

function env(
  services: readonly Service[],
  { namespace, output, serviceLinks, pod }: EnvOptions,
  note: (line: string) => void,
): string {
  const owned = pod === undefined ? [] : ownedPorts(services, namespace, pod, note);
  const variables = withoutRepeated([
    ...containerVariables(services, namespace, serviceLinks),
    ...owned,
  ]);
  if (variables.length === 0 && serviceLinks) {
    note(`no variables: no Service with a cluster IP in namespace ${namespace}`);
  }
  if (output === 'shell') {
    const names = variables.map(({ name }) => name).filter((name) => !isShellName(name));
    if (names.length > 0) {
      note(`omitted, because a shell variable cannot start with a digit: ${names.join(', ')}`);
    }
  }
  return formatVariables(variables, output);
}

function ownedPorts(
  services: readonly Service[],
  namespace: string,
  pod: string,
  note: (line: string) => void,
): EnvVar[] {
  const ordinal = ordinalOf(pod);
  if (ordinal === undefined) {
    note(`pod ${pod} owns no ports: its name does not end in a hyphen and a number`);
    return [];
  }
  const variables = ownedPortVariables(services, namespace, ordinal);
  if (variables.length === 0) {
    note(`pod ${pod} owns no ports: no Service in namespace ${namespace} has a slice ${ordinal}`);
  }
  return variables;
}

/** Of two variables with one name the first remains. */
function withoutRepeated(variables: readonly EnvVar[]): EnvVar[] {
  const byName = new Map<string, EnvVar>();
  for (const variable of variables) {
    if (!byName.has(variable.name)) byName.set(variable.name, variable);
  }
  return [...byName.values()];
}
