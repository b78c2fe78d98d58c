/** What the commands that read the status API share: options, exit statuses, output and `--watch`. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import { PROTOCOLS, type Protocol } from '../api/objects.ts';
import { isPort } from '../api/ports.ts';
import { DEFAULT_STATUS_SOCKET } from '../config/status-socket.ts';
import { UserError } from '../process/errors.ts';
import type { NodeStatus } from '../status/api/node-status.ts';
import type { ServiceList } from '../status/api/services.ts';
import type { TopList } from '../status/api/traffic.ts';
import { type Query, StatusClient } from '../status/client.ts';
import { ApiError, StatusClientError } from '../status/client-errors.ts';
import { type Style, styleFor } from '../status/print/style.ts';
import { ERROR_STATUS, failsWithTwo } from './usage.ts';

/** Exit statuses of all commands that read the status API. */
export const EXIT = { ok: 0, no: 1, error: ERROR_STATUS } as const;
type ExitStatus = (typeof EXIT)[keyof typeof EXIT];

const POLL_MS = 1000;
/** HTTP status. The agent answers with this or a higher one if the same request may succeed later. */
const TOO_MANY_REQUESTS = 429;
/** The agent has rates about a second after the first request. */
const RATES_MS = 3000;
const RATES_POLL_MS = 250;
/** Set by `kubectl portwide`: standard input ends when the user stops watching. */
const STDIN_VARIABLE = 'PORTWIDE_WATCH_STDIN';

/** Options of every command that reads the status API. */
export interface StatusCommandOptions {
  readonly statusSocket: string;
}

/** Adds a subcommand. Its usage errors end with status 2. @param usage such as `describe`. */
export function addStatusCommand(parent: Command, usage: string, description: string): Command {
  return failsWithTwo(parent.command(usage)).description(description);
}

export function statusSocketOption(): Option {
  return new Option('--status-socket <path>', "the agent's Unix socket")
    .argParser((path: string) => {
      if (path !== '') return path;
      throw new InvalidArgumentError('Name the path of a socket.');
    })
    .default(DEFAULT_STATUS_SOCKET);
}

export function watchOption(what: string): Option {
  return new Option('-w, --watch', `then poll each second and print ${what}`);
}

/** `--service`. Its value is `NAMESPACE/NAME`. */
export function serviceOption(description: string): Option {
  return new Option('--service <namespace/name>', description).argParser((given: string) => {
    const { namespace, name } = parsedService(given);
    if (namespace === undefined) throw new InvalidArgumentError('Use NAMESPACE/NAME.');
    return `${namespace}/${name}`;
  });
}

/** `--namespace`, for commands that select Services by it and perhaps by `--service`. */
export function namespaceOption(): Option {
  return new Option('-n, --namespace <name>', 'only Services in this namespace').conflicts(
    'service',
  );
}

/** @throws InvalidArgumentError */
function parsedService(given: string): ReturnType<typeof serviceName> {
  try {
    return serviceName(given, undefined);
  } catch (error) {
    throw error instanceof UserError ? new InvalidArgumentError(error.text) : error;
  }
}

/**
 * Makes a command that only has subcommands say so if its subcommand is missing. Call it after they were added.
 * @param kinds such as `service`.
 */
export function requireKind(command: Command, kinds: string): void {
  command.configureOutput({
    outputError: (text, write) =>
      write(
        text.includes('unknown option')
          ? `error: name a kind first, before options: portwide ${command.name()} ${kinds}\n`
          : text,
      ),
  });
}

/** Help text for exit statuses. @param no when the status is 1; undefined: never. @param error when it is 2. */
export function exitHelp(ok: string, no?: string, error = 'no agent, or another error'): string {
  return `
Exit status:
  0  ${ok}${no === undefined ? '' : `\n  1  ${no}`}
  2  ${error}
`;
}

/** Help text for commands that read conntrack. */
export const UNTRACKED_HELP = `
UDP of owned ports (portwide.dev/owned-ports) is not tracked: no rows, no counters.
`;

/** What a command has to work with. */
export interface Session {
  readonly client: StatusClient;
  readonly style: Style;
  readonly print: (text: string) => void;
  readonly note: (line: string) => void;
}

/**
 * Runs a command. The process ends with the status that `run` returns, and with 2 for an error.
 * @param unknown the status if the agent does not know the object.
 */
export async function withAgent(
  { statusSocket }: StatusCommandOptions,
  run: (session: Session) => Promise<ExitStatus>,
  unknown: ExitStatus = EXIT.no,
): Promise<void> {
  // The status if an error is thrown below.
  process.exitCode = EXIT.error;
  const session: Session = {
    client: new StatusClient({ socketPath: statusSocket }),
    style: styleFor(process.stdout.isTTY, process.env),
    print: (text) => void process.stdout.write(text),
    note: (line) => void process.stderr.write(`${line}\n`),
  };
  try {
    process.exitCode = await run(session);
  } catch (error) {
    if (error instanceof ApiError && error.code === 404) process.exitCode = unknown;
    throw error;
  }
}

/** Ends a command without end when its output has no reader, and when `kubectl portwide` ends. */
export function endWithUser(): void {
  setInterval(() => void endWithReader(), POLL_MS).unref();
  // Without a terminal, no signal reaches the pod.
  if (process.env[STDIN_VARIABLE] === undefined) return;
  process.stdin.on('close', () => process.exit(0)).resume();
}

/** Otherwise `| head -n 1` would not end a command that has nothing to write. */
async function endWithReader(): Promise<void> {
  // Loaded late, because it loads koffi.
  const { hasHungUp } = await import('../netlink/core/hang-up.ts');
  if (hasHungUp(process.stdout.fd)) process.exit(0);
}

/**
 * For an empty answer about one Service.
 * @param name its name; in any namespace if `namespace` is undefined.
 * @throws ApiError with code 404 if the agent does not know the Service.
 */
export async function requireService(
  { client }: Pick<Session, 'client'>,
  namespace: string | undefined,
  name: string,
): Promise<void> {
  const key = `${namespace}/${name}`;
  const query = namespace === undefined ? {} : { service: key };
  const { items } = await client.list<ServiceList>('/api/v1/services', query);
  if (items.some((service) => service.name === name)) return;
  throw await unknownService(client, namespace, name);
}

/**
 * The error for a Service that the agent does not know. It gives the reason if the Service cannot be read.
 * @param namespace undefined: any
 */
export async function unknownService(
  client: StatusClient,
  namespace: string | undefined,
  name: string,
): Promise<ApiError> {
  const known = namespace ?? (await namespaceOfUnreadable(client, name));
  if (known === undefined) return notFound(`this agent knows no Service ${JSON.stringify(name)}`);
  try {
    await client.get(servicePath(known, name), []);
  } catch (error) {
    if (error instanceof ApiError && error.code === 404) return error;
    throw error;
  }
  // The Service came between the requests.
  return notFound(`this agent knew no Service "${known}/${name}" just now`);
}

async function namespaceOfUnreadable(
  client: StatusClient,
  name: string,
): Promise<string | undefined> {
  const { problems } = await client.get<NodeStatus>('/api/v1/status', ['problems']);
  for (const { reason, object } of problems) {
    const [kind, key = ''] = object?.split(' ') ?? [];
    const [namespace, its] = key.split('/');
    if (reason === 'Unreadable' && kind === 'Service' && its === name) return namespace;
  }
  return undefined;
}

export function notFound(message: string): ApiError {
  return new ApiError({ code: 404, message, parameter: null });
}

/** The path of a Service in the API. */
export function servicePath(namespace: string, name: string): string {
  return `/api/v1/services/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
}

/**
 * Reads `GET /api/v1/top` until it has rates, at most for 3 s.
 * @returns the last answer.
 */
export async function readRates({ client }: Session, query: Query): Promise<TopList> {
  const end = performance.now() + RATES_MS;
  for (;;) {
    const list = await client.get<TopList>('/api/v1/top', ['items', 'total', 'sample'], query);
    if (list.sample.intervalSeconds !== null || performance.now() >= end) return list;
    await new Promise((resolve) => setTimeout(resolve, RATES_POLL_MS));
  }
}

/**
 * Calls `poll` each second, without end. If the agent does not answer, says so once and goes on, so that a watch
 * survives a restart of the agent.
 * @throws errors of `poll` that are no failures of the connection.
 */
export async function watch({ note }: Session, poll: () => Promise<void>): Promise<never> {
  endWithUser();
  let isLost = false;
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    try {
      await poll();
      if (isLost) note('portwide: the agent answers again');
      isLost = false;
    } catch (error) {
      const isPassing = error instanceof ApiError ? error.code >= TOO_MANY_REQUESTS : true;
      if (!(error instanceof StatusClientError) || !isPassing) throw error;
      if (!isLost) note(`portwide: ${error.text.split('\n')[0]}; waiting for the agent`);
      isLost = true;
    }
  }
}

/** Parses `NS/NAME`, `service/NS/NAME`, or `NAME`. @param object for the message. @throws UserError */
export function serviceName(
  given: string,
  namespace: string | undefined,
  object = 'Service',
): { readonly namespace: string | undefined; readonly name: string } {
  const parts = given.replace(/^(service|services|svc)\/(?=.+\/)/, '').split('/');
  const [first = '', second] = parts;
  if (parts.length > 2 || parts.includes('')) {
    throw new UserError(`"${given}" is not the name of a ${object}: use NAMESPACE/NAME`);
  }
  if (second === undefined) return { namespace, name: first };
  if (namespace !== undefined && namespace !== first) {
    throw new UserError(`"${given}" is not in the namespace of --namespace: use only one of them`);
  }
  return { namespace: first, name: second };
}

/** For help texts. */
export const PROTOCOL_NAMES = PROTOCOLS.join(', ').toLowerCase();

/** Parses an option. @throws InvalidArgumentError */
export function portNumber(text: string): number {
  const port = /^\d{1,5}$/.test(text) ? Number(text) : 0;
  if (isPort(port)) return port;
  throw new InvalidArgumentError('Use a port from 1 to 65535.');
}

/** Parses an option. @throws InvalidArgumentError */
export function protocolName(text: string): Protocol {
  const found = PROTOCOLS.find((each) => each === text.toUpperCase());
  if (found !== undefined) return found;
  throw new InvalidArgumentError(`Use one of ${PROTOCOL_NAMES}.`);
}
