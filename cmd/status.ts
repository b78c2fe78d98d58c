/** `portwide status`: the state of the agent on this node. */
import { type Command, Option } from 'commander';
import type { NodeStatus } from '../status/api/node-status.ts';
import { type DocumentFormat, documentText } from '../status/print/documents.ts';
import { NODE_COLUMNS, nodeStatusText, statusChanges } from '../status/print/node-status.ts';
import { tableText } from '../status/print/table.ts';
import {
  addStatusCommand,
  EXIT,
  exitHelp,
  type Session,
  type StatusCommandOptions,
  statusSocketOption,
  watch,
  watchOption,
  withAgent,
} from './status-command.ts';

interface StatusOptions extends StatusCommandOptions {
  readonly output?: DocumentFormat | 'short' | 'wide';
  readonly headers: boolean;
  readonly watch?: true;
}

export function addStatusOfNodeCommand(program: Command): void {
  addStatusCommand(program, 'status', 'show the state of the agent on this node, problems first')
    .addOption(
      new Option(
        '-o, --output <format>',
        'wide: all kernel features; short: a table with one row',
      ).choices(['wide', 'short', 'json', 'yaml']),
    )
    .option('--no-headers', 'with -o short: no header')
    .addOption(watchOption('changes of state and problems'))
    .addOption(statusSocketOption())
    .addHelpText('after', exitHelp('healthy', 'starting, or degraded: there are problems'))
    .action((options: StatusOptions) =>
      withAgent(options, async (session) => {
        const first = await readStatus(session);
        session.print(await formatted(first, options, session));
        if (options.watch) await watchStatus(first, options, session);
        return first.state === 'healthy' ? EXIT.ok : EXIT.no;
      }),
    );
}

function readStatus({ client }: Session): Promise<NodeStatus> {
  return client.get<NodeStatus>('/api/v1/status', [
    ...(['nodeName', 'mode', 'state', 'problems', 'waitingFor', 'families'] as const),
    ...(['source', 'kernel', 'services', 'now'] as const),
  ]);
}

async function formatted(
  status: NodeStatus,
  { output, headers }: StatusOptions,
  { style }: Session,
): Promise<string> {
  if (output === 'json' || output === 'yaml') return documentText(status, output);
  if (output === 'short') {
    return tableText(NODE_COLUMNS, [status], Date.parse(status.now), {
      noHeaders: !headers,
      style,
    });
  }
  return nodeStatusText(status, style, output === 'wide');
}

/** Prints lines for changes, or the whole object with `-o json` and `-o yaml`. */
async function watchStatus(
  first: NodeStatus,
  options: StatusOptions,
  session: Session,
): Promise<never> {
  let last = first;
  return watch(session, async () => {
    const status = await readStatus(session);
    const changes = statusChanges(last, status, session.style);
    last = status;
    if (changes.length === 0) return;
    const isDocument = options.output === 'json' || options.output === 'yaml';
    session.print(isDocument ? await nextDocument(status, options, session) : changes.join(''));
  });
}

async function nextDocument(status: NodeStatus, options: StatusOptions, session: Session) {
  const text = await formatted(status, options, session);
  return options.output === 'yaml' ? `---\n${text}` : text;
}
