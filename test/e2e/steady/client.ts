/** A client in a child process: opens connections at a rate, holds some, and exchanges datagrams. */
import { createSocket } from 'node:dgram';
import { connect, isIPv6, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { serveCalls } from '../../child.ts';
import { Random } from '../../random.ts';
import type { Target } from './kept-services.ts';

export interface ClientOptions {
  readonly seed: number;
  /** Connections a second. */
  readonly rate: number;
  readonly tcp: readonly Target[];
  /** Each keeps one flow: its datagrams have one source port. */
  readonly udp: readonly Target[];
  /** Get datagrams from one source port, whose answers are ignored. */
  readonly sprayed: readonly Target[];
  /** Connections that stay open. */
  readonly held: number;
}

export interface ClientTally {
  readonly opened: number;
  /** Connections whose answer took more than `SLOW_MS`: a packet was sent again. */
  readonly slow: number;
  readonly exchanges: number;
  readonly datagrams: number;
  readonly lost: readonly Loss[];
}

export interface Loss {
  /** When the attempt began and when it failed, in milliseconds since 1970. */
  readonly from: number;
  readonly until: number;
  readonly what: string;
  /** The connection was answered with an ICMP error or a reset. */
  readonly isRefused: boolean;
}

/** A lost SYN is sent again after 1, 3, 7, 15 and 31 s; Linux gives up after 127 s. */
const TIMEOUT_MS = 60_000;
const SLOW_MS = 900;
const REFUSED = 'ECONNREFUSED';
const TICK_MS = 5;
const EXCHANGE_MS = 1000;
const DATAGRAM_MS = 500;
/** Datagrams may be lost with an endpoint, or while another program's change is repaired. */
const DATAGRAM_TRIES = 120;
/** Datagrams a second that are sprayed. */
const SPRAY_RATE = 200;

const tally = { opened: 0, slow: 0, exchanges: 0, datagrams: 0, lost: [] as Loss[] };
const running = new Set<Promise<void>>();
let isOver = false;

function run(work: Promise<void>): void {
  running.add(work);
  void work.finally(() => running.delete(work));
}

function lose(what: string, from: number): void {
  tally.lost.push({ from, until: Date.now(), what, isRefused: what.endsWith(REFUSED) });
}

/** Connects and waits for the greeting. @returns the socket, or a description of the failure. */
function open({ address, port }: Target): Promise<Socket | string> {
  return new Promise((resolve) => {
    const socket = connect({ host: address, port, noDelay: true });
    const finish = (result: Socket | string) => {
      clearTimeout(timer);
      socket.removeAllListeners('error').removeAllListeners('data').removeAllListeners('close');
      socket.on('error', () => {});
      if (typeof result === 'string') socket.destroy();
      resolve(result);
    };
    const timer = setTimeout(() => finish('timeout'), TIMEOUT_MS);
    socket.once('data', () => finish(socket));
    socket.once('error', (error: NodeJS.ErrnoException) => finish(error.code ?? error.message));
    socket.once('close', () => finish('closed'));
  });
}

async function openOnce(target: Target): Promise<void> {
  const from = Date.now();
  const result = await open(target);
  tally.opened += 1;
  if (typeof result === 'string') {
    lose(`connection to ${target.address} port ${target.port}: ${result}`, from);
    return;
  }
  if (Date.now() - from > SLOW_MS) tally.slow += 1;
  // A reset leaves no TIME_WAIT, neither here nor in the node's conntrack table.
  result.resetAndDestroy();
}

async function openMany({ rate, tcp, seed }: ClientOptions): Promise<void> {
  const random = new Random(seed);
  const started = performance.now();
  for (let made = 0; !isOver; await sleep(TICK_MS)) {
    const due = ((performance.now() - started) / 1000) * rate;
    for (; made < due; made++) run(openOnce(random.pick(tcp)));
  }
}

async function holdOne(target: Target): Promise<void> {
  let from = Date.now();
  const socket = await open(target);
  const name = `held connection to ${target.address} port ${target.port}`;
  if (typeof socket === 'string') {
    lose(`${name}: ${socket}`, from);
    return;
  }
  while (!isOver) {
    from = Date.now();
    const result = await exchange(socket);
    tally.exchanges += 1;
    if (result !== undefined) {
      lose(`${name}: ${result}`, from);
      break;
    }
    await sleep(EXCHANGE_MS);
  }
  socket.destroy();
}

/** Sends a line and waits for its echo. @returns a description of the failure. */
function exchange(socket: Socket): Promise<string | undefined> {
  return new Promise((resolve) => {
    const finish = (result: string | undefined) => {
      clearTimeout(timer);
      socket.removeListener('data', onData).removeListener('close', onClose);
      resolve(result);
    };
    const onData = () => finish(undefined);
    const onClose = () => finish('closed');
    const timer = setTimeout(() => finish('silent'), TIMEOUT_MS);
    if (socket.destroyed) return finish('closed');
    socket.once('data', onData).once('close', onClose);
    socket.write('x\n');
  });
}

async function keepFlow({ address, port }: Target): Promise<void> {
  const socket = createSocket(isIPv6(address) ? 'udp6' : 'udp4');
  socket.on('error', () => {});
  let answers = 0;
  socket.on('message', () => {
    answers += 1;
  });
  await new Promise<void>((resolve) => socket.connect(port, address, resolve));
  for (let unanswered = 0; !isOver; ) {
    const before = answers;
    socket.send('probe', () => {});
    await sleep(DATAGRAM_MS);
    tally.datagrams += 1;
    unanswered = answers > before ? 0 : unanswered + 1;
    if (unanswered === DATAGRAM_TRIES) {
      lose(
        `UDP flow to ${address} port ${port}: silent`,
        Date.now() - DATAGRAM_TRIES * DATAGRAM_MS,
      );
    }
  }
  socket.close();
}

async function spray({ sprayed }: ClientOptions): Promise<void> {
  const sockets = { 4: createSocket('udp4'), 6: createSocket('udp6') };
  for (const socket of Object.values(sockets)) socket.on('error', () => {}).bind(0);
  for (let sent = 0; !isOver && sprayed.length > 0; sent++) {
    const { address, port } = sprayed[sent % sprayed.length] as Target;
    sockets[isIPv6(address) ? 6 : 4].send('spray', port, address, () => {});
    await sleep(1000 / SPRAY_RATE);
  }
  for (const socket of Object.values(sockets)) socket.close();
}

const functions = {
  start(options: ClientOptions): void {
    const { tcp, udp, held } = options;
    run(openMany(options));
    run(spray(options));
    for (const target of udp) run(keepFlow(target));
    for (let index = 0; index < held; index++) run(holdOne(tcp[index % tcp.length] as Target));
  },
  tally: (): ClientTally => tally,
  /** Opens no more connections, and waits for the answers of the last. */
  async stop(): Promise<ClientTally> {
    isOver = true;
    while (running.size > 0) await Promise.all(running);
    return tally;
  },
};

export type ClientFunctions = typeof functions;

serveCalls(functions);
