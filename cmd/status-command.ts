/** What the commands that read the status API share: options, exit statuses, output and `--watch`. */
import { type Command, Option } from 'commander';
import { DEFAULT_STATUS_SOCKET } from '../config/status-socket.ts';
import { UserError } from '../process/errors.ts';
import { StatusClient } from '../status/client.ts';
import { ApiError, StatusClientError } from '../status/client-errors.ts';
import { type Style, styleFor } from '../status/print/style.ts';

/** Exit statuses of all commands that read the status API. */
export const EXIT = { ok: 0, no: 1, error: 2 } as const;
type ExitStatus = (typeof EXIT)[keyof typeof EXIT];

const POLL_MS = 1000;
/** HTTP status. The agent answers with this or a higher one if the same request may succeed later. */
const TOO_MANY_REQUESTS = 429;
/** Set by `kubectl portwide`: standard input ends when the user stops watching. */
const STDIN_VARIABLE = 'PORTWIDE_WATCH_STDIN';

/** Options of every command that reads the status API. */
export interface StatusCommandOptions {
  readonly statusSocket: string;
}

/** Adds a subcommand. Its usage errors end with status 2. @param usage such as `describe`. */
export function addStatusCommand(parent: Command, usage: string, description: string): Command {
  return parent
    .command(usage)
    .description(description)
    .exitOverride(({ exitCode }) => process.exit(exitCode === 0 ? EXIT.ok : EXIT.error));
}

export function statusSocketOption(): Option {
  return new Option('--status-socket <path>', "the agent's Unix socket").default(
    DEFAULT_STATUS_SOCKET,
  );
}

export function watchOption(what: string): Option {
  return new Option('-w, --watch', `then poll each second and print ${what}`);
}

/** Help text for exit statuses. @param no when the status is 1. */
export function exitHelp(ok: string, no: string): string {
  return `
Exit status:
  0  ${ok}
  1  ${no}
  2  no agent, or another error
`;
}

/** What a command has to work with. */
export interface Session {
  readonly client: StatusClient;
  readonly style: Style;
  readonly print: (text: string) => void;
  readonly note: (line: string) => void;
}

/**
 * Runs a command. The process ends with the status that `run` returns, with 1 if the agent does not know the object,
 * and with 2 for any other error.
 */
export async function withAgent(
  { statusSocket }: StatusCommandOptions,
  run: (session: Session) => Promise<ExitStatus>,
): Promise<void> {
  // The status if an error is thrown below.
  process.exitCode = EXIT.error;
  endWithReader();
  const session: Session = {
    client: new StatusClient({ socketPath: statusSocket }),
    style: styleFor(process.stdout.isTTY, process.env),
    print: (text) => void process.stdout.write(text),
    note: (line) => void process.stderr.write(`${line}\n`),
  };
  try {
    process.exitCode = await run(session);
  } catch (error) {
    if (error instanceof ApiError && error.code === 404) process.exitCode = EXIT.no;
    throw error;
  }
}

/** Ends the process without a message when the reader of its output is gone (`| head`), as kubectl does. */
function endWithReader(): void {
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') process.exit(0);
    throw error;
  });
}

/**
 * Calls `poll` each second, without end. If the agent does not answer, says so once and goes on, so that a watch
 * survives a restart of the agent.
 * @throws errors of `poll` that are no failures of the connection.
 */
export async function watch({ note }: Session, poll: () => Promise<void>): Promise<never> {
  if (process.env[STDIN_VARIABLE] !== undefined) {
    process.stdin.on('close', () => process.exit(0)).resume();
  }
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

/** Parses `NS/NAME`, `service/NS/NAME`, or `NAME`. @throws UserError */
export function serviceName(
  given: string,
  namespace: string | undefined,
): { readonly namespace: string | undefined; readonly name: string } {
  const parts = given.replace(/^(service|services|svc)\/(?=.+\/)/, '').split('/');
  const [first = '', second] = parts;
  if (parts.length > 2 || parts.includes('')) {
    throw new UserError(`"${given}" is not the name of a Service: use NAMESPACE/NAME`);
  }
  if (second === undefined) return { namespace, name: first };
  if (namespace !== undefined && namespace !== first) {
    throw new UserError(`"${given}" is not in the namespace of --namespace: use only one of them`);
  }
  return { namespace: first, name: second };
}
