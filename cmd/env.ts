/** `portwide env`: the environment variables that a container gets for Services. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import type { Service } from '../api/objects.ts';
import { ordinalOf } from '../api/owned-ports.ts';
import type { Pod } from '../api/policy-objects.ts';
import { isDnsLabel, isDnsSubdomain } from '../api/read-name.ts';
import { loadOrWarn } from '../config/configuration.ts';
import { addFlags, type FlagTexts } from '../config/flags.ts';
import { ALL_SETTINGS, type RunOptions } from '../config/settings.ts';
import { HOLDER_REASONS, holderAmong } from '../endpoints/slice-owners.ts';
import { ENV_FORMATS, type EnvFormat, formatVariables, isShellName } from '../envvars/format.ts';
import { containerVariables, type EnvVar, ownedPortVariables } from '../envvars/variables.ts';
import { UserError } from '../process/errors.ts';
import { ALL_SERVICES, podResource } from '../sources/kubernetes/resources.ts';
import { readOnce } from '../sources/read-once.ts';
import { ERROR_STATUS, failsWithTwo } from './usage.ts';

interface EnvOptions {
  readonly namespace: string;
  readonly output: EnvFormat;
  readonly serviceLinks: boolean;
  readonly pod?: string;
}

export function addEnvCommand(program: Command): void {
  const { config, kubeconfig, master, manifests } = ALL_SETTINGS;
  const command = failsWithTwo(program.command('env'))
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
        'add NAME_OWNED_PORTS and NAME_OWNED_VIPS, the ports of this pod and the VIPs that serve them, for each Service with owned ports that selects the pod',
      ).argParser(podName),
    )
    .option(
      '--no-service-links',
      "only the variables of the API server's Service, as with `enableServiceLinks: false`",
    );
  addFlags(command, { config, kubeconfig, master, manifests }).action(
    async (texts: FlagTexts & EnvOptions) => {
      // The status if an error is thrown below.
      process.exitCode = ERROR_STATUS;
      const { options } = await loadOrWarn(texts);
      const note = (line: string) => process.stderr.write(`${line}\n`);
      const { services, pods } = await readObjects(options, texts, note);
      process.stdout.write(env(services, pods, texts, note));
      process.exitCode = 0;
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

/** Lists all Services once, including Services of another proxy (service-proxy-name label), and the pod, if one is named. */
async function readObjects(
  options: RunOptions,
  { namespace, pod }: EnvOptions,
  note: (line: string) => void,
): Promise<{ readonly services: Service[]; readonly pods: Pod[] }> {
  const resources = pod === undefined ? [] : [podResource(namespace, pod)];
  const objects = await readOnce(options, [ALL_SERVICES, ...resources], note);
  return {
    services: objects.flatMap((object) => (object.kind === 'Service' ? [object] : [])),
    pods: objects.flatMap((object) => (object.kind === 'Pod' ? [object] : [])),
  };
}

/** @throws UserError */
function env(
  services: readonly Service[],
  pods: readonly Pod[],
  { namespace, output, serviceLinks, pod }: EnvOptions,
  note: (line: string) => void,
): string {
  const owned = pod === undefined ? [] : ownedPorts(services, pods, namespace, pod, note);
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
  pods: readonly Pod[],
  namespace: string,
  pod: string,
  note: (line: string) => void,
): EnvVar[] {
  const found = pods.find((each) => each.namespace === namespace && each.name === pod);
  if (found === undefined) {
    throw new UserError(
      `no pod ${pod} in namespace ${namespace}: its labels decide which Services give it ports`,
    );
  }
  const holder = holderAmong([found]);
  if (holder !== 'pod') {
    note(`pod ${pod} owns no ports: it ${HOLDER_REASONS[holder]}`);
    return [];
  }
  const ordinal = ordinalOf(pod);
  if (ordinal === undefined) {
    note(`pod ${pod} owns no ports: its name does not end in a hyphen and a number`);
    return [];
  }
  const { labels } = found;
  const variables = ownedPortVariables(services, { namespace, labels, ordinal });
  if (variables.length === 0) {
    note(`pod ${pod} owns no ports: no Service that selects it has a slice ${ordinal}`);
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
