/** Queries over TCP: messages with their length before them (RFC 1035, 4.2.2; RFC 7766). */
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { HEADER_LENGTH, MAX_QUERY_LENGTH } from './query.ts';

type Answerer = (query: Buffer) => Buffer | undefined | Promise<Buffer | undefined>;

export interface TcpLimits {
  /** Of all clients together; one more ends the one that has been quiet for longest. */
  readonly connections: number;
  /** Milliseconds without a complete query, after which a connection is closed. */
  readonly idle: number;
  /** Queries of one connection that wait for others to answer. */
  readonly pendingQueries: number;
}

/** So short as RFC 7766, 6.2.3 wants it; and no client has a use for more connections. */
export const TCP_LIMITS: TcpLimits = { connections: 1000, idle: 10_000, pendingQueries: 32 };

/** The connections of all sockets that listen. */
export class TcpConnections {
  readonly #limits: TcpLimits;
  /** The one that asked last is the last. */
  readonly #connections = new Set<Connection>();

  constructor(limits: TcpLimits) {
    this.#limits = limits;
  }

  get size(): number {
    return this.#connections.size;
  }

  /** Answers what comes over a socket, which has to allow being half open, until it closes. */
  add(socket: Socket, answer: Answerer): void {
    const [quietest] = this.#connections;
    if (quietest !== undefined && this.size >= this.#limits.connections) {
      quietest.close();
      this.#connections.delete(quietest);
    }
    const connection = new Connection(socket, answer, this.#limits, () => {
      if (this.#connections.delete(connection)) this.#connections.add(connection);
    });
    this.#connections.add(connection);
    socket.once('close', () => this.#connections.delete(connection));
  }

  /** Answers the queries that came, reads no more, and closes. Resolves when all connections are closed. */
  async finish(): Promise<void> {
    await Promise.all([...this.#connections].map((connection) => connection.finish()));
  }

  close(): void {
    for (const connection of this.#connections) connection.close();
  }
}

const EMPTY = Buffer.alloc(0);
/** Of one connection, before others have their turn. */
const QUERIES_PER_SLICE = 50;
/** Milliseconds, likewise: a query for a Service of thousands of pods takes long. */
const TIME_SLICE = 5;
/** Bytes of answers that are gathered for one write: a call of the kernel costs as much as several answers. */
const WRITE_BATCH = 16 << 10;

/**
 * One client. Nothing is read while it does not take its answers, or while many of its queries wait: what
 * is held for it is a piece of its stream and the answer that was too much.
 */
class Connection {
  readonly #socket: Socket;
  readonly #answer: Answerer;
  readonly #limits: TcpLimits;
  readonly #onQuery: () => void;
  readonly #idle: NodeJS.Timeout;
  #received: Buffer = EMPTY;
  /** Answers that are not written yet, and their bytes with the lengths before them. */
  #queued: Buffer[] = [];
  #queuedBytes = 0;
  #pendingQueries = 0;
  /** The client sends no more. */
  #hasEnded = false;
  /** Nothing more is read. */
  #isFinishing = false;

  constructor(socket: Socket, answer: Answerer, limits: TcpLimits, onQuery: () => void) {
    this.#socket = socket;
    this.#answer = answer;
    this.#limits = limits;
    this.#onQuery = onQuery;
    this.#idle = setTimeout(() => this.close(), limits.idle);
    socket.on('data', (chunk: Buffer) => {
      this.#received = this.#received.length === 0 ? chunk : Buffer.concat([this.#received, chunk]);
      this.#processQueries();
    });
    socket.on('drain', () => this.#processQueries());
    socket.on('end', () => {
      this.#hasEnded = true;
      this.#processQueries();
    });
    // A client that resets its connection is its own affair.
    socket.on('error', () => this.close());
    socket.on('close', () => clearTimeout(this.#idle));
  }

  /** Resolves when the socket is closed, which waits for the client to take its answers. */
  finish(): Promise<unknown> {
    const closed = once(this.#socket, 'close');
    this.#isFinishing = true;
    this.#processQueries();
    return closed;
  }

  close(): void {
    this.#socket.destroy();
  }

  /** Answers what has come, as far as the client takes answers. */
  #processQueries(): void {
    const socket = this.#socket;
    const end = performance.now() + TIME_SLICE;
    for (let count = 0; !socket.destroyed && !this.#isFull(); count++) {
      if (count === QUERIES_PER_SLICE || performance.now() > end) {
        this.#flush();
        socket.pause();
        setImmediate(() => this.#processQueries());
        return;
      }
      const query = this.#nextQuery();
      if (query === undefined) {
        // A copy of the piece that is left, or it would keep all that came with it.
        if (this.#received.length > 0) this.#received = Buffer.from(this.#received);
        else this.#received = EMPTY;
        break;
      }
      this.#onQuery();
      this.#idle.refresh();
      const response = this.#answer(query);
      if (response instanceof Promise) this.#awaitResponse(response);
      else this.#queueResponse(response);
    }
    this.#flush();
    if (socket.destroyed) return;
    if (this.#isFull()) socket.pause();
    else if (this.#isFinishing) {
      socket.pause();
      if (this.#pendingQueries === 0) socket.destroySoon();
    } else if (this.#hasEnded && this.#pendingQueries === 0) socket.end();
    else socket.resume();
  }

  #isFull(): boolean {
    return this.#socket.writableNeedDrain || this.#pendingQueries >= this.#limits.pendingQueries;
  }

  /** The next query, when all of it is there. */
  #nextQuery(): Buffer | undefined {
    const received = this.#received;
    if (received.length < 2) return undefined;
    const length = received.readUInt16BE(0);
    if (length < HEADER_LENGTH || length > MAX_QUERY_LENGTH) {
      // No query, so what follows is none either.
      this.close();
      return undefined;
    }
    const end = 2 + length;
    if (received.length < end) return undefined;
    this.#received = received.subarray(end);
    return received.subarray(2, end);
  }

  #awaitResponse(response: Promise<Buffer | undefined>): void {
    this.#pendingQueries += 1;
    const then = (bytes: Buffer | undefined) => {
      this.#pendingQueries -= 1;
      this.#queueResponse(bytes);
      this.#processQueries();
    };
    void response.then(then, () => this.close());
  }

  #queueResponse(response: Buffer | undefined): void {
    if (response === undefined) return;
    this.#queued.push(response);
    this.#queuedBytes += 2 + response.length;
    if (this.#queuedBytes >= WRITE_BATCH) this.#flush();
  }

  #flush(): void {
    if (this.#queued.length === 0) return;
    const bytes = Buffer.allocUnsafe(this.#queuedBytes);
    let at = 0;
    for (const response of this.#queued) {
      bytes.writeUInt16BE(response.length, at);
      response.copy(bytes, at + 2);
      at += 2 + response.length;
    }
    this.#queued = [];
    this.#queuedBytes = 0;
    if (!this.#socket.destroyed) this.#socket.write(bytes);
  }
}
