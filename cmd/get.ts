/** `portwide get`: tables of Services, endpoints and Routes as this node serves them. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import type { Page } from '../status/api/common.ts';
import type { EndpointStatus, RouteStatus, ServiceSummary } from '../status/api/services.ts';
import { ApiError } from '../status/client-errors.ts';
import { documentText } from '../status/print/documents.ts';
import {
  LISTED_ENDPOINT_COLUMNS,
  LISTED_ROUTE_COLUMNS,
  SERVICE_COLUMNS,
} from '../status/print/lists.ts';
import { WatchedRows } from '../status/print/row-changes.ts';
import { type Column, sortNames, sortRows, Table } from '../status/print/table.ts';
import {
  addStatusCommand,
  EXIT,
  exitHelp,
  type Session,
  type StatusCommandOptions,
  serviceName,
  statusSocketOption,
  watch,
  watchOption,
  withAgent,
} from './status-command.ts';

/** Options that become parameters of the API under the same name. */
const FILTERS = {
  state: new Option('--state <state>', 'only Services in this state').choices([
    ...['served', 'noEndpoints', 'refused', 'ignored'],
  ]),
  ports: new Option(
    '--ports <kind>',
    'only Services with all ports, ranges, or listed ports',
  ).choices(['all', 'ranges', 'ports']),
  vip: new Option('--vip <address>', 'only objects with this VIP'),
  address: new Option('--address <address>', 'only endpoints with this address'),
  family: new Option('--family <family>', 'only this IP family').choices(['IPv4', 'IPv6']),
} as const;
type Filter = keyof typeof FILTERS;

/** A kind of object that `get` lists. */
interface Listed<Row> {
  /** Plural, as in the path of the resource. */
  readonly plural: 'services' | 'endpoints' | 'routes';
  readonly aliases: readonly string[];
  readonly description: string;
  readonly columns: readonly Column<Row>[];
  readonly filters: readonly Filter[];
  /** `namespace/name` of the Service. */
  readonly service: (row: Row) => string;
  /** Tells rows apart. */
  readonly key: (row: Row) => string;
  /** Name for `-o name`; only Services have one. */
  readonly name?: (row: Row) => string;
}

const serviceOf = ({ namespace, name }: ServiceSummary) => `${namespace}/${name}`;

const SERVICES: Listed<ServiceSummary> = {
  plural: 'services',
  aliases: ['svc', 'service'],
  description: 'Services: VIPs, ports, state, and endpoints (READY: of all; LOCAL: on this node)',
  columns: SERVICE_COLUMNS,
  filters: ['state', 'ports', 'vip'],
  service: serviceOf,
  key: serviceOf,
  name: (row) => `service/${serviceOf(row)}`,
};

const ENDPOINTS: Listed<EndpointStatus> = {
  plural: 'endpoints',
  aliases: ['ep', 'endpoint'],
  description: 'endpoints: whether this node sends clients to them, and why',
  columns: LISTED_ENDPOINT_COLUMNS,
  filters: ['address', 'family'],
  service: ({ service }) => service,
  key: ({ service, portName, family, address, port }) =>
    [service, portName, family, address, port].join(' '),
};

const ROUTES: Listed<RouteStatus> = {
  plural: 'routes',
  aliases: ['route'],
  description:
    'VIPs and node ports: endpoints for clients outside, and what happens to packets without one',
  columns: LISTED_ROUTE_COLUMNS,
  filters: ['vip', 'family'],
  service: ({ service }) => service,
  key: ({ service, portName, family, kind, vip, ports }) =>
    [service, portName, family, kind, vip, ports].join(' '),
};

interface GetOptions extends StatusCommandOptions, Partial<Readonly<Record<Filter, string>>> {
  readonly namespace?: string;
  readonly output?: 'wide' | 'json' | 'yaml' | 'name';
  readonly headers: boolean;
  readonly sortBy?: string;
  readonly watch?: true;
}

export function addGetCommand(program: Command): void {
  const get = addStatusCommand(program, 'get', 'list objects as this node serves them');
  addList(get, SERVICES);
  addList(get, ENDPOINTS);
  addList(get, ROUTES);
}

function addList<Row extends object>(get: Command, listed: Listed<Row>): void {
  const { plural, aliases, columns, filters, description } = listed;
  const formats = ['wide', 'json', 'yaml', ...(listed.name === undefined ? [] : ['name'])];
  const command = addStatusCommand(get, plural, description)
    .aliases([...aliases])
    .argument('[service]', 'NAME, NAMESPACE/NAME, or service/NAMESPACE/NAME of a Service')
    .option('-n, --namespace <name>', 'namespace (default: all)')
    .option('-A, --all-namespaces', 'all namespaces, the default')
    .addOption(new Option('-o, --output <format>', 'output format').choices(formats))
    .option('--no-headers', 'no header')
    .addOption(
      new Option(
        '--sort-by <column>',
        `${sortNames(columns).join(', ')}; with a leading - in reverse`,
      ).argParser(sortColumn(columns)),
    );
  for (const filter of filters) command.addOption(FILTERS[filter]);
  command
    .addOption(watchOption('rows that change'))
    .addOption(statusSocketOption())
    .addHelpText('after', exitHelp('listed', 'no such Service'))
    .action((service: string | undefined, options: GetOptions & { allNamespaces?: true }) =>
      withAgent(options, async (session) => {
        const namespace = options.allNamespaces ? undefined : options.namespace;
        await list(listed, service, { ...options, namespace }, session);
        return EXIT.ok;
      }),
    );
}

type ListOptions = Omit<GetOptions, 'namespace'> & { readonly namespace: string | undefined };

async function list<Row extends object>(
  listed: Listed<Row>,
  given: string | undefined,
  options: ListOptions,
  session: Session,
): Promise<void> {
  const { namespace } = options;
  const wanted = given === undefined ? { namespace } : serviceName(given, namespace);
  const read = () => readList(listed, wanted, options, session);
  const first = await read();
  const rows =
    options.sortBy === undefined
      ? first.items
      : sortRows(listed.columns, first.items, options.sortBy);
  const isOne = listed === (SERVICES as unknown) && given !== undefined && rows.length === 1;
  const printer = rowPrinter(listed, wanted.namespace !== undefined, options, session);
  if (rows.length === 0 && options.watch === undefined && !isDocument(options.output)) {
    session.note(`No ${listed.plural} found.`);
  } else if (isDocument(options.output) && !isOne && options.watch === undefined) {
    session.print(await documentText({ ...first, items: rows }, options.output));
  } else {
    session.print(await printer(rows, []));
  }
  if (options.watch === undefined) return;
  const watched = new WatchedRows(listed.key);
  watched.update(rows);
  await watch(session, async () => {
    const { changed, deleted } = watched.update((await read()).items);
    if (changed.length + deleted.length > 0) session.print(await printer(changed, deleted));
  });
}

interface Wanted {
  readonly namespace: string | undefined;
  readonly name?: string;
}

async function readList<Row>(
  { plural, filters, service }: Listed<Row>,
  { namespace, name }: Wanted,
  options: ListOptions,
  { client }: Session,
): Promise<Page<Row>> {
  const exact = namespace === undefined || name === undefined ? undefined : `${namespace}/${name}`;
  const page = await client.list<Page<Row>>(`/api/v1/${plural}`, {
    ...(exact === undefined ? { namespace } : { service: exact }),
    ...Object.fromEntries(filters.map((filter) => [filter, options[filter]])),
  });
  // The API has no filter for a name in all namespaces.
  const items =
    name === undefined ? page.items : page.items.filter((row) => service(row).endsWith(`/${name}`));
  const isFiltered = filters.some((filter) => options[filter] !== undefined);
  if (items.length > 0 || name === undefined || plural !== 'services' || isFiltered) {
    return { ...page, items, total: items.length };
  }
  const message = `this agent knows no Service ${JSON.stringify(exact ?? name)}`;
  throw new ApiError({ code: 404, message, parameter: null });
}

/** Parses `--sort-by`: a column, `-` before it reverses. The parser throws InvalidArgumentError. */
function sortColumn<Row>(columns: readonly Column<Row>[]): (given: string) => string {
  const names = sortNames(columns);
  return (given) => {
    const name = given.replace(/^-/, '').toLowerCase();
    if (names.includes(name)) return given.startsWith('-') ? `-${name}` : name;
    throw new InvalidArgumentError(`Use one of ${names.join(', ')}.`);
  };
}

function isDocument(output: GetOptions['output']): output is 'json' | 'yaml' {
  return output === 'json' || output === 'yaml';
}

type RowPrinter<Row> = (rows: readonly Row[], deleted: readonly Row[]) => Promise<string>;

/** Formats rows as they come; keeps the widths of columns between calls. */
function rowPrinter<Row extends object>(
  { columns, name }: Listed<Row>,
  isOneNamespace: boolean,
  { output, headers }: ListOptions,
  { style }: Session,
): RowPrinter<Row> {
  if (isDocument(output)) {
    let count = 0;
    return async (rows) => {
      const texts: string[] = [];
      for (const row of rows) {
        const separator = output === 'yaml' && count > 0 ? '---\n' : '';
        texts.push(separator + (await documentText(row, output)));
        count += 1;
      }
      return texts.join('');
    };
  }
  if (output === 'name') return async (rows) => rows.map((row) => `${name?.(row)}\n`).join('');
  const shown = columns.filter(
    ({ wide, ofAllNamespaces }) =>
      (output === 'wide' || !wide) && !(ofAllNamespaces && isOneNamespace),
  );
  const table = new Table(shown, { noHeaders: !headers, style });
  return async (rows, deleted) => table.print(rows, Date.now(), deleted);
}
