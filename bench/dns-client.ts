/**
 * Sends DNS queries over UDP or TCP in the current network namespace. The rate is fixed,
 * or a fixed number of queries is kept in flight.
 */
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { connect } from 'node:net';
import { encode, type RecordType } from 'dns-packet';
import { type Report, serve } from './jobs.ts';
import { percentile } from './table.ts';

export interface DnsLoad {
  readonly server: string;
  /** Number of TCP connections, used in turn; undefined: UDP. */
  readonly connections?: number;
  /** Pairs of name and type, queried in turn. */
  readonly questions: readonly (readonly [string, string])[];
  readonly seconds: number;
  /** Queries per second; undefined: `atATime` queries are kept in flight. */
  readonly rate?: number;
  readonly atATime?: number;
}

export type DnsReport = Report<DnsJobs, 'ask'>;

/** Milliseconds to wait for the last responses. */
const GRACE = 500;
const IDS = 0x10000;

export type DnsJobs = typeof jobs;

function encodeQuery([name, type]: readonly [string, string]): Buffer {
  return encode({
    type: 'query',
    flags: 0x100,
    questions: [{ name, type: type as RecordType }],
    additionals: [
      {
        name: '.',
        type: 'OPT',
        udpPayloadSize: 1232,
        extendedRcode: 0,
        ednsVersion: 0,
        flags: 0,
        flag_do: false,
        options: [],
      },
    ],
  });
}

/** A UDP socket or TCP connection to the server. Responses go to the `onAnswer` callback given at creation. */
interface Peer {
  send(query: Buffer): void;
  close(): void;
}

async function overUdp(server: string, onAnswer: (bytes: Buffer) => void): Promise<Peer> {
  const socket = createSocket({ type: 'udp4', recvBufferSize: 1 << 22 });
  socket.connect(53, server);
  await once(socket, 'connect');
  socket.on('message', onAnswer);
  return { send: (query) => socket.send(query), close: () => socket.close() };
}

async function overTcp(server: string, onAnswer: (bytes: Buffer) => void): Promise<Peer> {
  const socket = connect({ port: 53, host: server, noDelay: true });
  await once(socket, 'connect');
  let received: Buffer = Buffer.alloc(0);
  socket.on('data', (chunk: Buffer) => {
    received = received.length === 0 ? chunk : Buffer.concat([received, chunk]);
    // All messages queued in one turn are sent in one write.
    socket.cork();
    let at = 0;
    while (received.length >= at + 2 && received.length >= at + 2 + received.readUInt16BE(at)) {
      const end = at + 2 + received.readUInt16BE(at);
      onAnswer(received.subarray(at + 2, end));
      at = end;
    }
    received = received.subarray(at);
    socket.uncork();
  });
  const send = (query: Buffer) => {
    const framed = Buffer.allocUnsafe(2 + query.length);
    framed.writeUInt16BE(query.length);
    query.copy(framed, 2);
    socket.write(framed);
  };
  return { send, close: () => socket.destroy() };
}

/**
 * `rate` is responses per second; `failed` counts response codes other than NOERROR and NXDOMAIN;
 * times are in milliseconds.
 */
async function ask(load: DnsLoad) {
  const queries = load.questions.map(encodeQuery);
  /** Send time of the query with this id; 0 after its response. */
  const sentAt = new Float64Array(IDS);
  const latencies: number[] = [];
  let end = 0;
  let sent = 0;
  let failed = 0;

  const send = (peer: Peer | undefined) => {
    const id = sent % IDS;
    const query = queries[sent % queries.length] ?? Buffer.alloc(0);
    // Reuse the buffer: send() has copied the datagram to the kernel when it returns, unless the
    // queue of the socket is full.
    query.writeUInt16BE(id, 0);
    sentAt[id] = performance.now();
    sent += 1;
    peer?.send(query);
  };
  const receive = (bytes: Buffer, peer: () => Peer | undefined) => {
    const id = bytes.readUInt16BE(0);
    const sentTime = sentAt[id] ?? 0;
    if (sentTime === 0) return;
    sentAt[id] = 0;
    latencies.push(performance.now() - sentTime);
    const rcode = bytes.readUInt16BE(2) & 0xf;
    if (rcode !== 0 && rcode !== 3) failed += 1;
    if (load.rate === undefined && performance.now() < end) send(peer());
  };
  const peers: Peer[] = await Promise.all(
    Array.from({ length: load.connections ?? 1 }, (_, index) => {
      const onAnswer = (bytes: Buffer) => receive(bytes, () => peers[index]);
      const open = load.connections === undefined ? overUdp : overTcp;
      return open(load.server, onAnswer);
    }),
  );

  const started = performance.now();
  end = started + load.seconds * 1000;
  if (load.rate === undefined) {
    for (let count = 0; count < (load.atATime ?? 1); count++) send(peers[count % peers.length]);
    await new Promise((resolve) => setTimeout(resolve, load.seconds * 1000));
  } else {
    const { rate } = load;
    await new Promise<void>((resolve) => {
      const sendDue = () => {
        const now = performance.now();
        if (now >= end) return resolve();
        const due = ((now - started) / 1000) * rate;
        while (sent < due) send(peers[sent % peers.length]);
        setImmediate(sendDue);
      };
      sendDue();
    });
  }
  const seconds = (performance.now() - started) / 1000;
  const answered = latencies.length;
  await new Promise((resolve) => setTimeout(resolve, GRACE));
  for (const peer of peers) peer.close();
  return {
    rate: answered / seconds,
    sent,
    lost: sent - latencies.length,
    failed,
    p50: percentile(latencies, 50),
    p99: percentile(latencies, 99),
    longest: percentile(latencies, 100),
  };
}

const jobs = { ask };
await serve(jobs);
