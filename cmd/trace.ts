/** `portwide trace`: the path of a connection, computed by the agent and as the kernel reports it. */
import { isIP } from 'node:net';
import { type Command, InvalidArgumentError, Option } from 'commander';
import type { Protocol } from '../api/objects.ts';
import { UserError } from '../process/errors.ts';
import type { LiveTraceLine, TraceAnswer } from '../status/api/trace.ts';
import { ApiError } from '../status/client-errors.ts';
import { type DocumentFormat, documentText } from '../status/print/documents.ts';
import { liveLineText, traceAnswerText } from '../status/print/trace.ts';
import {
  addStatusCommand,
  EXIT,
  exitHelp,
  PROTOCOL_NAMES,
  portNumber,
  protocolName,
  type Session,
  type StatusCommandOptions,
  statusSocketOption,
  withAgent,
} from './status-command.ts';
import { type TraceStatus, traceStatus } from './trace-status.ts';

interface TraceOptions extends StatusCommandOptions {
  readonly namespace?: string;
  readonly proto?: Protocol;
  readonly port?: number;
  readonly sourcePort?: number;
  readonly live?: true;
  readonly seconds?: number;
  readonly output?: DocumentFormat;
}

const EXAMPLES = `
Examples:
  portwide trace 10.244.1.7 default/web
  portwide trace node 10.96.0.60 --port 20104 --proto udp
  portwide trace external 203.0.113.7 --port 443 --live --seconds 10
`;

export function addTraceCommand(program: Command): void {
  addStatusCommand(
    program,
    'trace',
    'show the path of a connection: Service, endpoints, masquerade, policies',
  )
    .argument('<from>', 'IP address, namespace/name of a pod, "node", or "external"')
    .argument(
      '<to>',
      'IP address, or namespace/name of a Service or pod; service/NAMESPACE/NAME or pod/NAMESPACE/NAME says which',
    )
    .option('-n, --namespace <name>', 'namespace of names without one')
    .addOption(
      new Option('--port <port>', 'destination port; a Service with one port needs none').argParser(
        portNumber,
      ),
    )
    .addOption(
      new Option(
        '--proto <protocol>',
        `${PROTOCOL_NAMES} (default: tcp, or that of a Service with one port)`,
      ).argParser(protocolName),
    )
    .addOption(
      new Option(
        '--source-port <port>',
        'source port, for pods that own UDP ports (default: any that no pod owns)',
      ).argParser(portNumber),
    )
    .option('--live', "also show the kernel's own trace of matching packets")
    .addOption(
      new Option(
        '--seconds <seconds>',
        'duration of the live trace, 1 to 30 (default: 5)',
      ).argParser(seconds),
    )
    .addOption(new Option('-o, --output <format>', 'output format').choices(['json', 'yaml']))
    .addOption(statusSocketOption())
    .addHelpText(
      'after',
      exitHelp(
        'the connection reaches its destination; with --live, the kernel does what is computed',
        'it is rejected, dropped, denied or not served, at least for one endpoint; with --live, the kernel differs or no packet matched',
        'uncertain: it depends on what the lines "uncertain" say; or no such Service or pod, no agent, or another error',
      ) + EXAMPLES,
    )
    .action((from: string, to: string, options: TraceOptions) =>
      withAgent(options, (session) => trace(session, { from, to }, options), EXIT.error),
    );
}

async function trace(
  { client, print }: Session,
  { from, to }: { readonly from: string; readonly to: string },
  { namespace, proto, port, sourcePort, live, seconds: duration, output }: TraceOptions,
): Promise<TraceStatus> {
  if (duration !== undefined && live !== true) throw new UserError('--seconds needs --live');
  refuseSocketAddress(to);
  const ends = { from: inNamespace(from, namespace), to: inNamespace(to, namespace) };
  const query = { ...ends, protocol: proto, port, sourcePort };
  const isText = output === undefined;
  const computed = await named(client.get<TraceAnswer>('/api/v1/trace', ['paths'], query));
  if (isText) print(traceAnswerText(computed));
  const seen: LiveTraceLine[] = [];
  if (live === true) {
    if (isText) print('\n');
    const lines = client.lines<LiveTraceLine>('/api/v1/trace/live', {
      ...query,
      seconds: duration,
    });
    for await (const line of lines) {
      seen.push(line);
      if (isText) print(liveLineText(line));
    }
  }
  if (output !== undefined)
    print(await documentText({ computed, ...(live ? { live: seen } : {}) }, output));
  return traceStatus(computed.paths, live === true ? seen : undefined);
}

/** Parameters of the API, as the command line names them. */
const ARGUMENTS: Readonly<Record<string, string>> = {
  from: 'FROM',
  to: 'TO',
  port: '--port',
  protocol: '--proto',
};

/** @throws UserError that names the argument of the command line, for an error about a parameter. */
async function named<T>(answer: Promise<T>): Promise<T> {
  try {
    return await answer;
  } catch (error) {
    const argument = error instanceof ApiError ? ARGUMENTS[error.parameter ?? ''] : undefined;
    if (!(error instanceof ApiError) || argument === undefined) throw error;
    throw new UserError(error.message.replace(/^parameter \w+/, argument), { cause: error });
  }
}

/** Adds the namespace to a name without one, such as `web` and `service/web`. */
function inNamespace(end: string, namespace: string | undefined): string {
  if (namespace === undefined || isIP(end) || end === 'node' || end === 'external') return end;
  const [, kind = '', name] = /^((?:service|svc|pod)s?\/)?([^/]+)$/.exec(end) ?? [];
  return name === undefined ? end : `${kind}${namespace}/${name}`;
}

/** @throws UserError for a destination with a port. */
function refuseSocketAddress(to: string): void {
  const [, host, inBrackets, port] = /^(?:([^:]+)|\[(.+)\]):(\d+)$/.exec(to) ?? [];
  if (port === undefined) return;
  throw new UserError(`"${to}" has a port: use ${host ?? inBrackets} --port ${port}`);
}

/** @throws InvalidArgumentError */
function seconds(text: string): number {
  const value = /^\d{1,2}$/.test(text) ? Number(text) : 0;
  if (value >= 1 && value <= 30) return value;
  throw new InvalidArgumentError('Use a number from 1 to 30.');
}
