/** `portwide flows`: connections of Services that open and close, and packets that are refused, as they happen. */
import { type Command, Option } from 'commander';
import type { FlowLine } from '../status/api/traffic.ts';
import type { StatusClientError } from '../status/client-errors.ts';
import { type DocumentFormat, documentText, jsonLine } from '../status/print/documents.ts';
import { safe } from '../status/print/style.ts';
import { Table } from '../status/print/table.ts';
import { FLOW_COLUMNS, lateText, lostText } from '../status/print/traffic.ts';
import { FLOW_EVENTS } from '../status/traffic/flow-filter.ts';
import {
  addStatusCommand,
  EXIT,
  endWithUser,
  exitHelp,
  namespaceOption,
  PROTOCOL_NAMES,
  portNumber,
  protocolName,
  type Session,
  type StatusCommandOptions,
  serviceOption,
  statusSocketOption,
  UNTRACKED_HELP,
  withAgent,
} from './status-command.ts';

interface FlowsOptions extends StatusCommandOptions {
  readonly namespace?: string;
  readonly service?: string;
  readonly ip?: string;
  readonly port?: number;
  readonly protocol?: string;
  readonly event?: string;
  readonly output?: DocumentFormat;
  readonly headers: boolean;
}

const EXAMPLES = `
A busy node has more flows than this command shows. With --service, --ip or
--port the kernel passes on only these flows, so that fewer are lost. --protocol
selects later.

Examples:
  portwide flows --service default/web
  portwide flows --event rejected
  portwide flows --ip 10.244.1.7 --protocol udp -o json
`;

export function addFlowsCommand(program: Command): void {
  addStatusCommand(
    program,
    'flows',
    'print connections of Services as they open and close, and packets as they are refused',
  )
    .addOption(namespaceOption())
    .addOption(serviceOption('only this Service'))
    .option('--ip <address>', 'only this source, destination or endpoint')
    .addOption(
      new Option('--port <port>', 'only this destination port or port of the endpoint').argParser(
        portNumber,
      ),
    )
    .addOption(new Option('--protocol <protocol>', PROTOCOL_NAMES).argParser(protocolName))
    .addOption(new Option('--event <event>', 'only this event').choices(FLOW_EVENTS))
    .addOption(
      new Option(
        '-o, --output <format>',
        'json: one object a line; yaml: a document for each',
      ).choices(['json', 'yaml']),
    )
    .option('--no-headers', 'no header')
    .addOption(statusSocketOption())
    .addHelpText(
      'after',
      exitHelp(
        'the reader of the output ended',
        undefined,
        'no such Service, no agent, or another error',
      ) +
        UNTRACKED_HELP +
        EXAMPLES,
    )
    .action((options: FlowsOptions) =>
      withAgent(options, (session) => follow(session, options), EXIT.error),
    );
}

/** Prints flows until the user or the agent ends. */
async function follow(session: Session, options: FlowsOptions): Promise<2> {
  const { namespace, service, ip, port, protocol, event } = options;
  endWithUser();
  const show = printer(session, options);
  const query = { namespace, service, ip, port, protocol, event };
  const onSilence = (error: StatusClientError | undefined) =>
    session.note(`portwide: ${error?.text ?? 'the agent answers again'}`);
  const lines = session.client.lines<FlowLine>('/api/v1/flows', query, undefined, onSilence);
  for await (const line of lines) await show(line);
  session.note('portwide: the agent ended the stream; it may be stopping');
  return EXIT.error;
}

type Printer = (line: FlowLine) => void | Promise<void>;

function printer(session: Session, options: FlowsOptions): Printer {
  const { print } = session;
  if (options.output === 'json') return (line) => print(jsonLine(line));
  if (options.output === 'yaml') {
    return async (line) => print(`---\n${await documentText(line, 'yaml')}`);
  }
  return tablePrinter(session, options);
}

function tablePrinter({ print, note, style }: Session, { headers }: FlowsOptions): Printer {
  const table = new Table(FLOW_COLUMNS, { noHeaders: !headers, style });
  const noted = new Set<string>();
  return (line) => {
    if ('flow' in line) return print(table.print([line], Date.now()));
    if (line.event === 'lost') return print(lostText(line));
    if (line.event === 'late') return print(lateText(line));
    // The header shows that later flows are reported.
    if (line.event === 'started') print(table.print([], Date.now()));
    for (const text of line.notes) if (!noted.has(text)) note(`portwide: ${safe(text)}`);
    noted.clear();
    for (const text of line.notes) noted.add(text);
  };
}
