/** `portwide describe`: everything that the agent knows about one object. */
import { type Command, Option } from 'commander';
import { UserError } from '../process/errors.ts';
import type { ServiceDetail, ServiceList } from '../status/api/services.ts';
import { type DocumentFormat, documentText } from '../status/print/documents.ts';
import { serviceDetailText } from '../status/print/service-detail.ts';
import {
  addStatusCommand,
  EXIT,
  exitHelp,
  requireKind,
  type Session,
  type StatusCommandOptions,
  serviceName,
  servicePath,
  statusSocketOption,
  unknownService,
  withAgent,
} from './status-command.ts';

interface DescribeOptions extends StatusCommandOptions {
  readonly namespace?: string;
  readonly output?: DocumentFormat | 'wide';
}

export function addDescribeCommand(program: Command): void {
  const describe = addStatusCommand(
    program,
    'describe',
    'show everything that the agent knows about one object',
  );
  addStatusCommand(
    describe,
    'service',
    'problems, endpoints with the reason why each is in use or not, rules in the kernel, Events',
  )
    .aliases(['svc', 'services'])
    .argument('<service>', 'NAMESPACE/NAME, or NAME if no other namespace has it')
    .option('-n, --namespace <name>', 'namespace')
    .addOption(
      new Option('-o, --output <format>', 'wide: more connections').choices([
        'wide',
        'json',
        'yaml',
      ]),
    )
    .addOption(statusSocketOption())
    .addHelpText('after', exitHelp('described', 'no such Service'))
    .action((service: string, options: DescribeOptions) =>
      withAgent(options, async (session) => {
        const path = await pathOf(service, options.namespace, session);
        const detail = await session.client.get<ServiceDetail>(path, [
          ...(['summary', 'objects', 'endpoints', 'routes', 'problems', 'kernel'] as const),
          ...(['kernelTotal', 'kernelDifferent', 'kernelStable'] as const),
          ...(['connections', 'healthCheck', 'events'] as const),
        ]);
        const { output } = options;
        session.print(
          output === undefined || output === 'wide'
            ? serviceDetailText(detail, Date.now(), session.style, output === 'wide')
            : await documentText(detail, output),
        );
        return EXIT.ok;
      }),
    );
  requireKind(describe, 'service NAME');
}

/** @throws UserError if several namespaces have the name; ApiError if none has it. */
async function pathOf(
  given: string,
  inNamespace: string | undefined,
  { client }: Session,
): Promise<string> {
  const { namespace, name } = serviceName(given, inNamespace);
  if (namespace !== undefined) return servicePath(namespace, name);
  const { items } = await client.list<ServiceList>('/api/v1/services');
  const found = items.filter((service) => service.name === name);
  if (found.length > 1) {
    const keys = found.map((service) => `${service.namespace}/${name}`);
    throw new UserError(`${found.length} Services have the name "${name}": ${keys.join(', ')}`);
  }
  const [only] = found;
  if (only === undefined) throw await unknownService(client, undefined, name);
  return servicePath(only.namespace, name);
}
