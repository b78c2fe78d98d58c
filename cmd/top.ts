/** `portwide top`: the Services, endpoints and ports with the most traffic. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import type { TopList } from '../status/api/traffic.ts';
import { documentText } from '../status/print/documents.ts';
import { Table } from '../status/print/table.ts';
import { sampleNotes, TOP_COLUMNS } from '../status/print/traffic.ts';
import {
  addStatusCommand,
  EXIT,
  exitHelp,
  namespaceOption,
  readRates,
  requireKind,
  requireService,
  type Session,
  type StatusCommandOptions,
  serviceOption,
  statusSocketOption,
  UNTRACKED_HELP,
  watch,
  withAgent,
} from './status-command.ts';

/** What is measured: values of parameter `by`. */
type By = keyof typeof TOP_COLUMNS;

interface TopOptions extends StatusCommandOptions {
  readonly namespace?: string;
  readonly service?: string;
  readonly limit: number;
  readonly output?: 'wide' | 'json' | 'yaml';
  readonly headers: boolean;
  readonly watch?: true;
}

const DEFAULT_LIMIT = 20;
/** The largest page of the API. */
const MAX_LIMIT = 1000;
const CLEAR_SCREEN = '\u001b[H\u001b[2J';

export function addTopCommand(program: Command): void {
  const top = addStatusCommand(
    program,
    'top',
    'show connections and rates, the busiest Services, endpoints or ports first',
  );
  addTop(top, 'service', ['services', 'svc', 'service'], 'the busiest Services');
  addTop(top, 'endpoint', ['endpoints', 'ep', 'endpoint'], 'the busiest endpoints of Services');
  addTop(
    top,
    'port',
    ['ports', 'port'],
    'the busiest destination ports, also of all-ports Services',
  );
  requireKind(top, 'services|endpoints|ports');
}

function addTop(
  top: Command,
  by: By,
  [plural = '', ...aliases]: readonly string[],
  description: string,
): void {
  addStatusCommand(top, plural, description)
    .aliases(aliases)
    .addOption(namespaceOption())
    .addOption(serviceOption('only this Service'))
    .addOption(
      new Option('--limit <rows>', 'number of rows').argParser(rows).default(DEFAULT_LIMIT),
    )
    .addOption(
      new Option('-o, --output <format>', 'output format; wide: also totals').choices([
        ...['wide', 'json', 'yaml'],
      ]),
    )
    .option('--no-headers', 'no header')
    .addOption(
      new Option(
        '-w, --watch',
        'go on, and print each new sample of the agent, 1 to 30 s apart; on a terminal it replaces the one before',
      ),
    )
    .addOption(statusSocketOption())
    .addHelpText('after', exitHelp('printed', 'no such Service') + UNTRACKED_HELP)
    .action((options: TopOptions) => withAgent(options, (session) => run(session, by, options)));
}

async function run(session: Session, by: By, options: TopOptions): Promise<0> {
  const { namespace, service, limit } = options;
  const query = { by, namespace, service, limit };
  const show = printer(session, by, options);
  const first = await readRates(session, query);
  if (first.total === 0 && service !== undefined) {
    const [its = '', name = ''] = service.split('/');
    await requireService(session, its, name);
  }
  await show(first);
  if (options.watch === undefined) return EXIT.ok;
  let shown = first.sample.sampledAt;
  return watch(session, async () => {
    const list = await readRates(session, query);
    if (list.sample.sampledAt === shown) return;
    shown = list.sample.sampledAt;
    await show(list);
  });
}

/** Prints samples one after the other; on a terminal, a table replaces the one before. */
function printer(
  { print, note, style }: Session,
  by: By,
  { output, headers, watch: isWatched }: TopOptions,
): (list: TopList) => Promise<void> {
  const columns = TOP_COLUMNS[by].filter(({ wide }) => output === 'wide' || !wide);
  const replaces = isWatched === true && process.stdout.isTTY;
  let count = 0;
  let noted = '';
  return async (list) => {
    const { items, total, sample } = list;
    const isFirst = count === 0;
    count += 1;
    if (output === 'json' || output === 'yaml') {
      const separator = output === 'yaml' && !isFirst ? '---\n' : '';
      print(separator + (await documentText(list, output)));
    } else {
      const table = new Table(columns, { noHeaders: !headers || items.length === 0, style });
      const separator = replaces ? CLEAR_SCREEN : isFirst ? '' : '\n';
      print(separator + table.print(items, Date.now()));
    }
    const notes = [
      ...(total === 0 ? ['no traffic of Services'] : []),
      ...(total > items.length ? [`${items.length} of ${total} rows; --limit shows more`] : []),
      ...sampleNotes(sample),
    ];
    if (!replaces && notes.join('\n') === noted) return;
    noted = notes.join('\n');
    for (const line of notes) note(`portwide: ${line}`);
  };
}

/** @throws InvalidArgumentError */
function rows(text: string): number {
  const value = /^\d{1,4}$/.test(text) ? Number(text) : 0;
  if (value >= 1 && value <= MAX_LIMIT) return value;
  throw new InvalidArgumentError(`Use a number from 1 to ${MAX_LIMIT}.`);
}
