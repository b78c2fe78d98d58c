/** DNS over TCP: messages with a length prefix (RFC 1035, 4.2.2; RFC 7766). */
import { once } from 'node:events';
import type { BlockList, Socket } from 'node:net';
import { type ConnectionLimits, Connections } from '../process/connections.ts';
import { HEADER_LENGTH, MAX_QUERY_LENGTH } from './query.ts';

type Answerer = (query: Buffer) => Buffer | undefined | Promise<Buffer | undefined>;

export interface TcpLimits extends ConnectionLimits {
  /** Milliseconds without a complete query after which a connection is closed. */
  readonly idle: number;
  /** Upper bound on queries per connection that wait for an upstream resolver. */
  readonly pendingQueries: number;
}

/** Default limits. RFC 7766, 6.2.3 recommends an idle timeout of a few seconds. */
export const TCP_LIMITS: TcpLimits = {
  total: 1000,
  perClient: 10,
  idle: 10_000,
  pendingQueries: 32,
};

/** Connections of all listening sockets. */
export class TcpConnections {
  readonly #limits: TcpLimits;
  readonly #bounded: Connections;
  readonly #connections = new Set<Connection>();
  readonly #turns = new Turns();

  constructor(limits: TcpLimits) {
    this.#limits = limits;
    this.#bounded = new Connections(limits);
  }

  get size(): number {
    return this.#bounded.size;
  }

  /** Of the sockets that listen; see `Connections`. */
  get blockList(): BlockList {
    return this.#bounded.blockList;
  }

  /** Answers queries on a socket until it closes. The socket must allow half-open connections. */
  add(socket: Socket, answer: Answerer): void {
    this.#bounded.add(socket);
    const connection = new Connection(socket, answer, this.#limits, this.#bounded, this.#turns);
    this.#connections.add(connection);
    socket.once('close', () => this.#connections.delete(connection));
  }

  /**
   * Answers the queries received so far, stops reading, and closes. Resolves when all connections
   * are closed.
   */
  async finish(): Promise<void> {
    await Promise.all([...this.#connections].map((connection) => connection.finish()));
  }

  close(): void {
    for (const connection of this.#connections) connection.close();
  }
}

const EMPTY = Buffer.alloc(0);
/** Queries of one connection answered before other connections get a turn. */
const QUERIES_PER_SLICE = 50;
/**
 * Milliseconds that one connection may use before others get a turn. A query for a Service with
 * thousands of pods takes long.
 */
const CONNECTION_SLICE = 1;
/** Milliseconds that all connections may use before queries over UDP and new connections get a turn. */
const TIME_SLICE = 5;
/** Bytes of responses collected for one write: a system call costs as much as several responses. */
const WRITE_BATCH = 16 << 10;

/** Divides time between the connections, so that many of them hold up the others for one slice only. */
class Turns {
  /** In the order in which they get a turn. */
  readonly #waiting = new Set<() => void>();
  /** End of the slice, in milliseconds of `performance.now()`; undefined if no slice has begun. */
  #end: number | undefined;

  /** Whether work may be done at once. */
  get hasTime(): boolean {
    return this.#waiting.size === 0 && performance.now() <= this.end;
  }

  /** Begins a slice if necessary. */
  get end(): number {
    if (this.#end === undefined) {
      this.#end = performance.now() + TIME_SLICE;
      setImmediate(() => this.#next());
    }
    return this.#end;
  }

  /** Does work behind other waiting work. */
  wait(work: () => void): void {
    this.#waiting.add(work);
    void this.end;
  }

  #next(): void {
    this.#end = undefined;
    for (const work of this.#waiting) {
      if (performance.now() > this.end) return;
      this.#waiting.delete(work);
      work();
    }
  }
}

/**
 * One client connection. Reading pauses while the client does not read responses or while too many
 * of its queries are pending. Memory per connection is thus limited to a part of its stream, one
 * batch of responses beyond the write buffer, and the responses to pending queries.
 */
class Connection {
  readonly #socket: Socket;
  readonly #answer: Answerer;
  readonly #limits: TcpLimits;
  readonly #bounded: Connections;
  readonly #turns: Turns;
  readonly #idle: NodeJS.Timeout;
  #received: Buffer = EMPTY;
  /** Responses not written yet. */
  #queued: Buffer[] = [];
  /** Bytes of `#queued`, with length prefixes. */
  #queuedBytes = 0;
  #pendingQueries = 0;
  /** The client has closed its side. */
  #hasEnded = false;
  /** No more queries are read. */
  #isFinishing = false;

  constructor(
    socket: Socket,
    answer: Answerer,
    limits: TcpLimits,
    bounded: Connections,
    turns: Turns,
  ) {
    this.#socket = socket;
    this.#answer = answer;
    this.#limits = limits;
    this.#bounded = bounded;
    this.#turns = turns;
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
    // A connection reset by the client is not an error of the server.
    socket.on('error', () => this.close());
    socket.on('close', () => clearTimeout(this.#idle));
  }

  /** Answers the received queries, then closes. Resolves when the socket is closed. */
  finish(): Promise<unknown> {
    const closed = once(this.#socket, 'close');
    this.#isFinishing = true;
    this.#processQueries();
    return closed;
  }

  close(): void {
    this.#socket.destroy();
  }

  /** Answers the received queries when it is the turn of this connection. */
  #processQueries(): void {
    if (this.#turns.hasTime) this.#processSlice();
    else this.#waitForTurn();
  }

  #waitForTurn(): void {
    this.#socket.pause();
    this.#turns.wait(this.#processSlice);
  }

  /** Answers at least one received query, as long as the client reads responses. */
  readonly #processSlice = (): void => {
    const socket = this.#socket;
    const end = Math.min(this.#turns.end, performance.now() + CONNECTION_SLICE);
    for (let count = 0; !socket.destroyed && !this.#isFull(); count++) {
      if (count === QUERIES_PER_SLICE || (count > 0 && performance.now() > end)) {
        this.#flush();
        this.#waitForTurn();
        return;
      }
      const query = this.#nextQuery();
      if (query === undefined) {
        // Copy the remaining piece; a slice would keep the whole received buffer alive.
        if (this.#received.length > 0) this.#received = Buffer.from(this.#received);
        else this.#received = EMPTY;
        break;
      }
      this.#bounded.begin(socket);
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
  };

  #isFull(): boolean {
    return this.#socket.writableNeedDrain || this.#pendingQueries >= this.#limits.pendingQueries;
  }

  /** The next complete query, if any. Closes the connection if the next message is not a query. */
  #nextQuery(): Buffer | undefined {
    const received = this.#received;
    if (received.length < 2) return undefined;
    const length = received.readUInt16BE(0);
    if (length < HEADER_LENGTH || length > MAX_QUERY_LENGTH) {
      // The message is not a query, so the boundaries of later messages are unknown.
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
    this.#bounded.end(this.#socket);
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
