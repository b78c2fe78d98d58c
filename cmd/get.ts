/** `portwide get`: tables of Services, endpoints and Routes as this node serves them, and of policies. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import type { Page } from '../status/api/common.ts';
import type { PolicySummary } from '../status/api/policies.ts';
import type { EndpointStatus, RouteStatus, ServiceSummary } from '../status/api/services.ts';
import type { Query } from '../status/client.ts';
import { ApiError } from '../status/client-errors.ts';
import { documentText } from '../status/print/documents.ts';
import {
  LISTED_ENDPOINT_COLUMNS,
  LISTED_ROUTE_COLUMNS,
  POLICY_COLUMNS,
  SERVICE_COLUMNS,
} from '../status/print/lists.ts';
import {
  nameOfEndpoint,
  nameOfPolicy,
  nameOfRoute,
  nameOfService,
  withoutPolicyKind,
} from '../status/print/names.ts';
import { WatchedRows } from '../status/print/row-changes.ts';
import { type Column, sortNames, sortRows, Table } from '../status/print/table.ts';
import { sampleNotes, TRAFFIC_COLUMNS } from '../status/print/traffic.ts';
import {
  addStatusCommand,
  EXIT,
  exitHelp,
  notFound,
  readRates,
  requireKind,
  requireService,
  type Session,
  type StatusCommandOptions,
  serviceName,
  statusSocketOption,
  unknownService,
  watch,
  watchOption,
  withAgent,
} from './status-command.ts';

/** Options that become parameters of the API under the same name. */
const VIP = new Option('--vip <address>', 'only objects with this VIP');
const FAMILY = new Option('--family <family>', 'only this IP family').choices(['IPv4', 'IPv6']);
const ADDRESS = new Option('--address <address>', 'only endpoints with this address');
const PORTS = new Option(
  '--ports <kind>',
  'only Services with all ports, ranges, or listed ports',
).choices(['all', 'ranges', 'ports']);
const SERVICE_STATE = new Option('--state <state>', 'only Services in this state').choices([
  ...['served', 'partial', 'noEndpoints', 'partlyRefused', 'refused', 'ignored'],
]);
const POLICY_STATE = new Option('--state <state>', 'only policies in this state').choices([
  ...['ok', 'faulty'],
]);

/** A kind of object that `get` lists. */
interface Listed<Row> {
  /** Plural, as in the path of the resource. */
  readonly plural: 'services' | 'endpoints' | 'routes' | 'policies';
  readonly aliases: readonly string[];
  readonly description: string;
  readonly columns: readonly Column<Row>[];
  /** Columns that `--traffic` adds; undefined for objects that have none. */
  readonly trafficColumns?: readonly Column<Row>[];
  readonly filters: readonly Option[];
  /** What a row is. Otherwise rows belong to a Service. */
  readonly object?: 'Service' | 'policy';
  /** `namespace/name` of the object, or of the Service that the row belongs to. */
  readonly owner: (row: Row) => string;
  /** Tells rows apart. */
  readonly key: (row: Row) => string;
  /** Name for `-o name`. Rows with the same name are printed once. */
  readonly name: (row: Row) => string;
}

const keyOf = ({ namespace, name }: { readonly namespace: string; readonly name: string }) =>
  `${namespace}/${name}`;

const SERVICES: Listed<ServiceSummary> = {
  plural: 'services',
  aliases: ['svc', 'service'],
  description: 'Services: VIPs, ports, state, and endpoints (READY: of all; LOCAL: on this node)',
  columns: SERVICE_COLUMNS,
  trafficColumns: TRAFFIC_COLUMNS,
  filters: [SERVICE_STATE, PORTS, VIP],
  object: 'Service',
  owner: keyOf,
  key: keyOf,
  name: nameOfService,
};

const ENDPOINTS: Listed<EndpointStatus> = {
  plural: 'endpoints',
  aliases: ['ep', 'endpoint'],
  description: 'endpoints: whether this node sends clients to them, and why',
  columns: LISTED_ENDPOINT_COLUMNS,
  trafficColumns: TRAFFIC_COLUMNS,
  filters: [ADDRESS, FAMILY],
  owner: ({ service }) => service,
  key: ({ service, portName, family, address, port }) =>
    [service, portName, family, address, port].join(' '),
  name: nameOfEndpoint,
};

const ROUTES: Listed<RouteStatus> = {
  plural: 'routes',
  aliases: ['route'],
  description:
    'VIPs and node ports: endpoints for clients outside, and what happens to packets without one',
  columns: LISTED_ROUTE_COLUMNS,
  filters: [VIP, FAMILY],
  owner: ({ service }) => service,
  key: ({ service, portName, family, kind, vip, ports }) =>
    [service, portName, family, kind, vip, ports].join(' '),
  name: nameOfRoute,
};

const POLICIES: Listed<PolicySummary> = {
  plural: 'policies',
  aliases: ['netpol', 'policy'],
  description:
    'network policies in order of evaluation (INGRESS, EGRESS: rules; PODS: on this node)',
  columns: POLICY_COLUMNS,
  filters: [POLICY_STATE],
  object: 'policy',
  owner: keyOf,
  key: (row) => `${row.kind} ${keyOf(row)}`,
  name: nameOfPolicy,
};

const FORMATS = ['wide', 'json', 'yaml', 'name'] as const;

interface GetOptions extends StatusCommandOptions {
  readonly namespace?: string;
  readonly output?: (typeof FORMATS)[number];
  readonly headers: boolean;
  readonly sortBy?: string;
  readonly traffic?: true;
  readonly watch?: true;
}

export function addGetCommand(program: Command): void {
  const get = addStatusCommand(program, 'get', 'list objects as this node serves them');
  addList(get, SERVICES);
  addList(get, ENDPOINTS);
  addList(get, ROUTES);
  addList(get, POLICIES);
  requireKind(get, 'services|endpoints|routes|policies');
}

function addList<Row extends object>(get: Command, listed: Listed<Row>): void {
  const { plural, aliases, trafficColumns = [], filters, description, object = 'Service' } = listed;
  const columns = [...listed.columns, ...trafficColumns];
  const command = addStatusCommand(get, plural, description)
    .aliases([...aliases])
    .argument(
      object === 'Service' ? '[service]' : '[name]',
      object === 'Service'
        ? 'NAME, NAMESPACE/NAME, or service/NAMESPACE/NAME of a Service'
        : 'NAME, NAMESPACE/NAME, or a name of -o name',
    )
    .option('-n, --namespace <name>', 'namespace (default: all)')
    .option('-A, --all-namespaces', 'all namespaces, the default')
    .addOption(new Option('-o, --output <format>', 'output format').choices(FORMATS))
    .option('--no-headers', 'no header')
    .addOption(
      new Option(
        '--sort-by <column>',
        `${sortNames(columns).join(', ')}; with a leading - in reverse`,
      ).argParser(sortColumn(columns)),
    );
  for (const filter of filters) command.addOption(filter);
  if (trafficColumns.length > 0) {
    command.option('--traffic', 'also connections and rates; takes a second to measure them');
  }
  command
    .addOption(watchOption('rows that change'))
    .addOption(statusSocketOption())
    .addHelpText('after', exitHelp('listed', `no such ${object}`))
    .action((given: string | undefined, options: GetOptions & { allNamespaces?: true }) =>
      withAgent(options, async (session) => {
        const namespace = options.allNamespaces ? undefined : options.namespace;
        const query = Object.fromEntries(
          filters.map((filter) => {
            const name = filter.attributeName();
            return [name, command.getOptionValue(name) as string | undefined];
          }),
        );
        // A column of traffic is only there to sort by if it is measured.
        const sorted = options.sortBy?.replace(/^-/, '');
        const isTraffic = sorted !== undefined && sortNames(trafficColumns).includes(sorted);
        const traffic = options.traffic ?? isTraffic;
        await list(listed, given, { ...options, namespace, query, traffic }, session);
        return EXIT.ok;
      }),
    );
}

interface ListOptions extends Omit<GetOptions, 'namespace' | 'traffic'> {
  readonly namespace: string | undefined;
  /** Values of the filters. */
  readonly query: Query;
  readonly traffic: boolean;
}

async function list<Row extends object>(
  listed: Listed<Row>,
  given: string | undefined,
  options: ListOptions,
  session: Session,
): Promise<void> {
  const { namespace, traffic } = options;
  const { object, trafficColumns = [] } = listed;
  const wanted = wantedObject(given, namespace, object);
  const read = () => readList(listed, wanted, options, session);
  if (traffic) {
    // One row, because only the sample matters: lists may be long.
    const { sample } = await readRates(session, { limit: 1 });
    for (const line of sampleNotes(sample)) session.note(`portwide: ${line}`);
  }
  const first = await read();
  const columns = traffic ? [...listed.columns, ...trafficColumns] : listed.columns;
  const rows =
    options.sortBy === undefined ? first.items : sortRows(columns, first.items, options.sortBy);
  const isOne = object !== undefined && given !== undefined && rows.length === 1;
  const isOneNamespace = wanted.namespace !== undefined;
  const printer = rowPrinter({ ...listed, columns }, isOneNamespace, options, session);
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

/** Parses the argument. @throws UserError */
function wantedObject(
  given: string | undefined,
  namespace: string | undefined,
  object: Listed<never>['object'],
): Wanted {
  if (given === undefined) return { namespace };
  return serviceName(object === 'policy' ? withoutPolicyKind(given) : given, namespace, object);
}

async function readList<Row>(
  { plural, owner, object }: Listed<Row>,
  { namespace, name }: Wanted,
  { query, traffic }: ListOptions,
  { client }: Session,
): Promise<Page<Row>> {
  const exact = namespace === undefined || name === undefined ? undefined : `${namespace}/${name}`;
  const page = await client
    .list<Page<Row>>(`/api/v1/${plural}`, {
      ...(exact === undefined || object === 'policy' ? { namespace } : { service: exact }),
      ...query,
      traffic: traffic ? 'true' : undefined,
    })
    .catch((error: unknown) => {
      if (object !== 'policy' || !(error instanceof ApiError) || error.code !== 404) throw error;
      throw notFound('this agent enforces no network policy: it runs without --network-policy');
    });
  // The API has no filter for a name in all namespaces.
  const items =
    name === undefined ? page.items : page.items.filter((row) => owner(row).endsWith(`/${name}`));
  if (items.length === 0 && name !== undefined && object === undefined) {
    await requireService({ client }, namespace, name);
  }
  const isFiltered = Object.values(query).some((value) => value !== undefined);
  if (items.length > 0 || name === undefined || object === undefined || isFiltered) {
    return { ...page, items, total: items.length };
  }
  if (object === 'Service') throw await unknownService(client, namespace, name);
  throw notFound(`this agent knows no ${object} ${JSON.stringify(exact ?? name)}`);
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
  if (output === 'name') {
    return async (rows) => [...new Set(rows.map(name))].map((each) => `${each}\n`).join('');
  }
  const shown = columns.filter(
    ({ wide, ofAllNamespaces }) =>
      (output === 'wide' || !wide) && !(ofAllNamespaces && isOneNamespace),
  );
  const table = new Table(shown, { noHeaders: !headers, style });
  return async (rows, deleted) => table.print(rows, Date.now(), deleted);
}
