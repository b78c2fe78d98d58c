/** `portwide policy explain`: whether network policies allow a connection, and which policy decides. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import { canonicalAddress } from '../api/addresses.ts';
import { InvalidObject } from '../api/errors.ts';
import { type ApiObject, PROTOCOLS, type Protocol } from '../api/objects.ts';
import type { Policy } from '../api/policy-objects.ts';
import { isPort } from '../api/ports.ts';
import { readDomainName } from '../api/read-domain-name.ts';
import { rootField } from '../api/read-field.ts';
import { isDnsLabel } from '../api/read-name.ts';
import { loadOrWarn } from '../config/configuration.ts';
import type { FeatureGates } from '../config/feature-gates.ts';
import { addFlags, type FlagTexts } from '../config/flags.ts';
import { ALL_SETTINGS } from '../config/settings.ts';
import {
  type ConnectionEnd,
  type ConnectionQuery,
  type DirectionVerdict,
  type Explanation,
  explain,
  UnknownPodError,
} from '../policy/model/explain.ts';
import { isModelObject, PolicyModel } from '../policy/model/model.ts';
import type { Direction } from '../policy/model/terms.ts';
import { UserError } from '../process/errors.ts';
import { serviceAddresses } from '../services/served-ports.ts';
import { ALL_SERVICES, policyResources } from '../sources/kubernetes/resources.ts';
import { readOnce } from '../sources/read-once.ts';
import type { DirectionExplanation, PolicyExplanation } from '../status/api/policies.ts';
import { StatusClient } from '../status/client.ts';
import { type StatusCommandOptions, statusSocketOption } from './status-command.ts';
import { ERROR_STATUS, failsWithTwo } from './usage.ts';

interface ExplainOptions extends StatusCommandOptions {
  readonly agent?: true;
  readonly from: ConnectionQuery['from'];
  readonly to: ConnectionEnd;
  readonly port: DestinationPort;
  readonly protocol?: Protocol;
  readonly output: 'text' | 'json';
}

/** `8080` or `8080/TCP`. */
interface DestinationPort {
  readonly number: number;
  readonly protocol: Protocol | undefined;
}

/** Exit statuses. Scripts must be able to tell a denied connection from an invalid query. */
const EXIT = { allow: 0, deny: 1, unknown: ERROR_STATUS } as const;
const EXIT_HELP = `
Exit status:
  0  allowed in every IP family that both ends have
  1  denied in at least one of them
  2  error or unknown: no such pod, unreadable objects, or the verdict depends
     on the addresses to which a domain name resolves
`;

export function addPolicyCommand(program: Command): void {
  const { config, featureGates, kubeconfig, master, manifests } = ALL_SETTINGS;
  const command = failsWithTwo(program.command('policy'))
    .description('inspect network policies')
    .command('explain')
    .description('show whether network policies allow a connection, and which policy decides')
    .addHelpText('after', EXIT_HELP)
    .addOption(
      new Option('--from <end>', 'source: namespace/name of a pod, or an IP address')
        .argParser(source)
        .makeOptionMandatory(),
    )
    .addOption(
      new Option(
        '--to <end>',
        'destination: namespace/name of a pod, an IP address, or a domain name',
      )
        .argParser(endpoint)
        .makeOptionMandatory(),
    )
    .addOption(
      new Option(
        '--port <port>',
        'destination port of the pod, such as 8080 or 8080/UDP; for a Service, its target port',
      )
        .argParser(destinationPort)
        .makeOptionMandatory(),
    )
    .addOption(
      new Option('--protocol <protocol>', `${PROTOCOLS.join(', ')} (default: TCP)`).argParser(
        protocol,
      ),
    )
    .addOption(
      new Option('-o, --output <format>', 'output format')
        .choices(['text', 'json'])
        .default('text'),
    )
    .addOption(
      new Option(
        '--agent',
        'ask the agent of this node, which also knows addresses of domain names',
      ).conflicts(['config', 'featureGates', 'kubeconfig', 'master', 'manifests']),
    )
    .addOption(statusSocketOption());
  addFlags(command, { config, featureGates, kubeconfig, master, manifests }).action(
    async (texts: FlagTexts & ExplainOptions) => {
      // The status if an error is thrown below.
      process.exitCode = EXIT.unknown;
      if (texts.agent) {
        const answer = await askAgent(texts);
        print(answer, texts);
        process.exitCode = isCertain(answer) ? EXIT[answer.verdict] : EXIT.unknown;
        return;
      }
      const { options } = await loadOrWarn(texts);
      const note = (line: string) => process.stderr.write(`${line}\n`);
      let isComplete = true;
      const objects = await readOnce(options, [ALL_SERVICES, ...policyResources()], (line) => {
        isComplete = false;
        note(line);
      });
      rejectServiceAddress(objects, texts.to, options.featureGates);
      const model = new PolicyModel({ nodeName: '' });
      for (const object of objects) if (isModelObject(object)) model.upsert(object);
      const answer = answerOf(model, texts);
      print(answer, texts);
      for (const line of faultNotes(answer, model.policies.all())) note(line);
      if (!isComplete)
        note('warning: the objects above cannot be read, so the verdict may be wrong');
      process.exitCode = isComplete && isCertain(answer) ? EXIT[answer.verdict] : EXIT.unknown;
    },
  );
}

function print(answer: ExplainAnswer, { output, to }: ExplainOptions): void {
  const json = () => `${JSON.stringify(answer, undefined, 2)}\n`;
  process.stdout.write(output === 'json' ? json() : textOf(answer, to));
}

/** @throws StatusClientError */
async function askAgent({
  statusSocket,
  from,
  to,
  ...rest
}: ExplainOptions): Promise<ExplainAnswer> {
  const path = '/api/v1/policies/explain';
  const client = new StatusClient({ socketPath: statusSocket });
  const answer = await client.get<PolicyExplanation>(path, ['verdict', 'families'], {
    from: endText(from),
    to: endText(to),
    port: rest.port.number,
    protocol: protocolOf(rest),
  });
  // Absent instead of null, as without --agent.
  const direction = (name: Direction, { tier, rule, ...fields }: DirectionExplanation) => ({
    ...fields,
    direction: name,
    tier: tier ?? undefined,
    rule: rule ?? undefined,
  });
  const families = answer.families.map((each) => ({
    ...each,
    to: each.to ?? undefined,
    egress: direction('egress', each.egress),
    ingress: direction('ingress', each.ingress),
  }));
  return { ...answer, families };
}

function endText(end: ConnectionEnd): string {
  if ('pod' in end) return end.pod;
  return 'name' in end ? end.name : end.address;
}

/** @throws UserError for an address of a Service: policies are evaluated after DNAT. */
function rejectServiceAddress(
  objects: readonly ApiObject[],
  to: ConnectionEnd,
  { AllowServiceExternalIPs: externalIPs }: FeatureGates,
): void {
  if (!('address' in to)) return;
  for (const object of objects) {
    if (object.kind !== 'Service') continue;
    if (!serviceAddresses(object, { externalIPs }).includes(to.address)) continue;
    throw new UserError(
      `${to.address} belongs to Service ${object.key}. Policies are evaluated after DNAT: use a backend pod and its target port.`,
    );
  }
}

/** The result of `portwide policy explain`, and its JSON output. */
interface ExplainAnswer {
  readonly port: number;
  readonly protocol: Protocol;
  /** Allowed in every family that both ends have. */
  readonly verdict: 'allow' | 'deny';
  readonly families: readonly Explanation[];
}

/** @throws UserError if an end does not exist, or the ends have no IP family in common. */
function answerOf(model: PolicyModel, options: ExplainOptions): ExplainAnswer {
  const { from, to } = options;
  const port = options.port.number;
  const protocol = protocolOf(options);
  let families: Explanation[];
  try {
    families = explain(model, { from, to, port, protocol });
  } catch (error) {
    if (!(error instanceof UnknownPodError)) throw error;
    throw new UserError(error.message, { cause: error });
  }
  if (families.length === 0)
    throw new UserError('--from and --to have no addresses of the same IP family');
  const isAllowed = families.every(({ verdict }) => verdict === 'allow');
  return { port, protocol, verdict: isAllowed ? 'allow' : 'deny', families };
}

/** @throws UserError if `--port` and `--protocol` name different protocols. */
function protocolOf({ port, protocol }: Pick<ExplainOptions, 'port' | 'protocol'>): Protocol {
  if (port.protocol !== undefined && protocol !== undefined && port.protocol !== protocol) {
    throw new UserError(
      `--port ${port.number}/${port.protocol} contradicts --protocol ${protocol}: use only one of them`,
    );
  }
  return port.protocol ?? protocol ?? 'TCP';
}

/** Whether the verdict is independent of the addresses to which domain names resolve. */
function isCertain({ verdict, families }: ExplainAnswer): boolean {
  const isSure = ({ uncertain }: DirectionVerdict) => uncertain.length === 0;
  if (verdict === 'allow') {
    return families.every(({ egress, ingress }) => isSure(egress) && isSure(ingress));
  }
  return families.some(({ egress, ingress }) =>
    [egress, ingress].some((each) => each.verdict === 'deny' && isSure(each)),
  );
}

const WORDS = { allow: 'allowed', deny: 'denied' } as const;

function textOf({ port, protocol, families }: ExplainAnswer, target: ConnectionEnd): string {
  const unknown = 'name' in target ? `${target.name} (address unknown)` : 'address unknown';
  return families
    .flatMap(({ family, from, to, verdict, egress, ingress }) => [
      `${family} ${from} -> ${to ?? unknown}, ${protocol} ${port}: ${WORDS[verdict]}`,
      ...directionLines(egress, to),
      ...directionLines(ingress, to),
    ])
    .map((line) => `${line}\n`)
    .join('');
}

function directionLines(
  { direction, verdict, tier, reason, uncertain, notLearned }: DirectionVerdict,
  to: string | undefined,
): string[] {
  const by = tier === undefined ? '' : ` (${tier === 'NetworkPolicy' ? tier : `tier ${tier}`})`;
  return [
    `  ${direction} ${WORDS[verdict]}${by}: ${reason}`,
    ...uncertain.map((rule) =>
      to === undefined
        ? `    unless the address of the destination is in a network of the earlier rule ${rule}`
        : `    unless ${to} is a resolved address of a domain name in the earlier rule ${rule}`,
    ),
    ...notLearned.map(
      (rule) => `    the agent saw no DNS answer with ${to} for the earlier rule ${rule}`,
    ),
  ];
}

/** Notes on the deciding policies that have a faulty rule. */
function faultNotes({ families }: ExplainAnswer, policies: Iterable<Policy>): string[] {
  const deciding = new Set(
    families.flatMap(({ egress, ingress }) => [...egress.policies, ...ingress.policies]),
  );
  return [...policies]
    .map(({ kind, key, faults }) => ({ name: `${kind} ${key}`, faults }))
    .filter(({ name }) => deciding.has(name))
    .flatMap(({ name, faults }) =>
      faults.map(({ field, reason }) => `${name}: ${field}: ${reason}; the rule fails closed`),
    );
}

/** @throws InvalidArgumentError */
function source(given: string): ConnectionQuery['from'] {
  const end = podOrAddress(given);
  if (end !== undefined) return end;
  throw new InvalidArgumentError('Use namespace/name of a pod, or an IP address.');
}

/** @throws InvalidArgumentError */
function endpoint(given: string): ConnectionEnd {
  const end = podOrAddress(given);
  if (end !== undefined) return end;
  try {
    const name = readDomainName(rootField('', given));
    if (!name.startsWith('*')) return { name };
  } catch (error) {
    if (!(error instanceof InvalidObject)) throw error;
  }
  throw new InvalidArgumentError(
    'Use namespace/name of a pod, an IP address, or a domain name without wildcard.',
  );
}

/** @returns undefined if the text has no `/` and is not an address. @throws InvalidArgumentError */
function podOrAddress(given: string): ConnectionQuery['from'] | undefined {
  const address = canonicalAddress(given);
  if (address !== undefined) return { address };
  if (!given.includes('/')) return undefined;
  const [namespace = '', name = '', ...more] = given.split('/');
  if (more.length === 0 && isDnsLabel(namespace) && name !== '') return { pod: given };
  throw new InvalidArgumentError('Use namespace/name for a pod.');
}

/** @throws InvalidArgumentError */
function destinationPort(given: string): DestinationPort {
  const [, digits = '0', name] = /^(\d{1,5})(?:\/(.*))?$/.exec(given) ?? [];
  const number = Number(digits);
  if (!isPort(number))
    throw new InvalidArgumentError('Use a port from 1 to 65535, such as 8080 or 8080/UDP.');
  return { number, protocol: name === undefined ? undefined : protocol(name) };
}

/** @throws InvalidArgumentError */
function protocol(given: string): Protocol {
  const found = PROTOCOLS.find((each) => each === given.toUpperCase());
  if (found !== undefined) return found;
  throw new InvalidArgumentError(`Use one of the protocols ${PROTOCOLS.join(', ')}.`);
}
