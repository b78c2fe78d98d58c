/** TCP of a host's thread: probes and held connections. */
import { connect, type Socket } from 'node:net';
import { LabError } from './errors.ts';
import { isPortUnreachable, listenForErrors, onError } from './icmp.ts';
import type { ProbeRequest } from './messages.ts';
import type { ProbeOutcome, ServerReply } from './outcomes.ts';
import { familyOf, IPPROTO } from './packets.ts';

interface Connected {
  readonly outcome: ProbeOutcome;
  /** Only if answered. */
  readonly socket?: Socket;
}

interface Held {
  readonly socket: Socket;
  readonly lines: LineReader;
}

const held = new Map<number, Held>();
const leftOpen = new Set<Socket>();
let lastConnection = 0;

/** Connects, reads the greeting, and closes. */
export async function probeTcp(request: ProbeRequest): Promise<ProbeOutcome> {
  const { outcome, socket } = await open(request);
  if (!socket) return outcome;
  if (request.keepOpen) {
    leftOpen.add(socket);
    socket.once('close', () => leftOpen.delete(socket));
  } else if (request.localPort === undefined) {
    socket.end();
  } else {
    // A reset leaves no TIME_WAIT, so that the next probe can use the same port.
    socket.resetAndDestroy();
  }
  return outcome;
}

/** Connects and keeps the connection under a number; `onClose` is called when it closes. */
export async function hold(
  request: ProbeRequest,
  onClose: (connection: number) => void,
): Promise<ProbeOutcome & { readonly connection?: number }> {
  const { outcome, socket } = await open(request);
  if (!socket) return outcome;
  lastConnection += 1;
  const connection = lastConnection;
  held.set(connection, { socket, lines: readLines(socket) });
  socket.once('close', () => {
    held.delete(connection);
    onClose(connection);
  });
  return { ...outcome, connection };
}

/** Sends a line and returns the next line received. */
export async function exchange(
  connection: number,
  text: string,
  timeoutMs: number,
): Promise<string> {
  const found = held.get(connection);
  if (!found) throw new LabError('CONNECTION', 'the connection is closed');
  found.socket.write(`${text}\n`);
  return await found.lines.next(timeoutMs);
}

/** Closes a held connection. A connection that is already closed is not an error. */
export function release(connection: number): void {
  held.get(connection)?.socket.end();
}

function open(request: ProbeRequest): Promise<Connected> {
  const { address, port, timeoutMs, localPort, localAddress } = request;
  const family = familyOf(address);
  listenForErrors(family);
  const since = performance.now();
  return new Promise((resolve) => {
    const socket = connect({
      host: address,
      port,
      family,
      noDelay: true,
      ...(localPort === undefined ? {} : { localPort }),
      ...(localAddress === undefined ? {} : { localAddress }),
    });
    let connected = false;
    let cancelError = () => {};
    const finish = (outcome: ProbeOutcome) => {
      clearTimeout(timer);
      cancelError();
      if (outcome.outcome === 'answered') resolve({ outcome, socket });
      else {
        socket.destroy();
        resolve({ outcome });
      }
    };
    const timer = setTimeout(
      () => finish(connected ? { outcome: 'error', code: 'SILENT' } : { outcome: 'timeout' }),
      timeoutMs,
    );
    // The port is known once connect(2) has run, which is before the event loop polls again.
    setImmediate(() => {
      const own = socket.localPort;
      if (own === undefined || socket.destroyed) return;
      const flow = {
        protocol: IPPROTO.tcp,
        localPort: own,
        remoteAddress: address,
        remotePort: port,
      };
      cancelError = onError(flow, since, (error) => {
        if (isPortUnreachable(error)) finish({ outcome: 'refused', by: 'icmp' });
      });
    });
    socket.once('connect', () => {
      connected = true;
    });
    socket.on('error', (error: NodeJS.ErrnoException) => {
      // The ICMP error that caused this is already in the raw socket's buffer: let it be read
      // first.
      setImmediate(() => {
        const code = error.code ?? error.message;
        const refused = !connected && code === 'ECONNREFUSED';
        finish(refused ? { outcome: 'refused', by: 'rst' } : { outcome: 'error', code });
      });
    });
    socket.once('end', () => finish({ outcome: 'error', code: 'CLOSED' }));
    // Read up to the end of the first line. The rest, if any, is read by the owner of the socket.
    readLines(socket)
      .next(timeoutMs + 1000)
      .then((line) => {
        const reply = parseReply(line);
        const own = socket.localPort ?? 0;
        finish(
          reply
            ? { outcome: 'answered', reply, localPort: own }
            : { outcome: 'error', code: 'SILENT' },
        );
      })
      // The reader fails only after the connection has failed, which is reported above.
      .catch(() => undefined);
  });
}

function parseReply(line: string): ServerReply | undefined {
  try {
    return JSON.parse(line) as ServerReply;
  } catch {
    return undefined;
  }
}

interface LineReader {
  next(timeoutMs: number): Promise<string>;
}

const readers = new WeakMap<Socket, LineReader>();

/** Line reader of a socket; a socket has only one. */
function readLines(socket: Socket): LineReader {
  const existing = readers.get(socket);
  if (existing) return existing;
  let rest = '';
  let ended = false;
  const lines: string[] = [];
  const waiting: { take: (line: string) => void; fail: (error: LabError) => void }[] = [];
  socket.setEncoding('utf8').on('data', (text: string) => {
    const parts = (rest + text).split('\n');
    rest = parts.pop() ?? '';
    for (const line of parts) {
      const taker = waiting.shift();
      if (taker) taker.take(line);
      else lines.push(line);
    }
  });
  socket.once('close', () => {
    ended = true;
    for (const { fail } of waiting.splice(0)) {
      fail(new LabError('CONNECTION', 'the connection closed'));
    }
  });
  const reader: LineReader = {
    next: (timeoutMs) =>
      new Promise((resolve, reject) => {
        const line = lines.shift();
        if (line !== undefined) return resolve(line);
        if (ended) return reject(new LabError('CONNECTION', 'the connection closed'));
        const taker = {
          take: (found: string) => {
            clearTimeout(timer);
            resolve(found);
          },
          fail: (error: LabError) => {
            clearTimeout(timer);
            reject(error);
          },
        };
        const timer = setTimeout(() => {
          waiting.splice(waiting.indexOf(taker), 1);
          reject(new LabError('CONNECTION', `no answer within ${timeoutMs} ms`));
        }, timeoutMs);
        waiting.push(taker);
      }),
  };
  readers.set(socket, reader);
  return reader;
}
