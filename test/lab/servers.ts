/** Servers of a host's thread, one socket per port. */
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { createServer, type Socket } from 'node:net';
import { LabError } from './errors.ts';
import type { HostIdentity, ServeRequest } from './messages.ts';
import type { Protocol, ServerReply } from './outcomes.ts';
import { familyOf, plainAddress } from './packets.ts';
import { serveSctp, stopServingSctp } from './sctp.ts';
import { REPLY_MARK } from './udp.ts';

interface Served {
  readonly protocol: Protocol;
  readonly port: number;
  readonly close: () => void;
}

let served: Served[] = [];

/**
 * Serves ports with one socket each. All sockets are open when the promise resolves.
 *
 * @throws Node.js's error, such as EADDRINUSE
 */
export async function serve(host: HostIdentity, request: ServeRequest): Promise<void> {
  const { protocol, ports, address } = request;
  if (protocol === 'SCTP') {
    serveSctp(host, ports);
    return;
  }
  // A UDP answer must be sent from the destination address of the datagram, so each address has a
  // socket. TCP does so by itself.
  const addresses =
    address !== undefined
      ? [address]
      : protocol === 'TCP'
        ? ['::']
        : [...host.addresses[4], ...host.addresses[6]];
  const opened = ports.flatMap((port) =>
    addresses.map((each) =>
      protocol === 'TCP' ? serveTcp(host.name, port, each) : serveUdp(host.name, port, each),
    ),
  );
  const results = await Promise.allSettled(opened);
  const failure = results.find((result) => result.status === 'rejected');
  if (failure) {
    await stopServing(protocol, ports);
    throw new LabError('SYSTEM_CALL_FAILED', `cannot serve ${protocol}`, failure.reason);
  }
}

/** Stops serving. Accepted connections stay open. */
export function stopServing(protocol?: Protocol, ports?: readonly number[]): void {
  const isSelected = (one: Served) =>
    (protocol === undefined || one.protocol === protocol) &&
    (ports === undefined || ports.includes(one.port));
  for (const one of served) if (isSelected(one)) one.close();
  served = served.filter((one) => !isSelected(one));
  if (protocol === undefined || protocol === 'SCTP') stopServingSctp(ports);
}

/** Whether a UDP port has its own socket. */
export function servesUdp(port: number): boolean {
  return served.some((one) => one.protocol === 'UDP' && one.port === port);
}

/** Sends a greeting to a TCP client and echoes its lines. */
export function greet(socket: Socket, reply: ServerReply): void {
  // Resets by the client or by rules of a node are expected.
  socket.on('error', () => socket.destroy());
  socket.setNoDelay(true);
  socket.write(`${JSON.stringify(reply)}\n`);
  socket.pipe(socket);
}

/**
 * The answer to a datagram; undefined if the datagram is an answer itself, to prevent loops between
 * echo servers.
 */
export function udpAnswer(reply: ServerReply, message: Buffer): Buffer | undefined {
  const payload = message.toString();
  return payload.startsWith(REPLY_MARK)
    ? undefined
    : Buffer.from(JSON.stringify({ ...reply, payload }));
}

async function serveTcp(host: string, port: number, address: string): Promise<void> {
  const server = createServer((socket) =>
    greet(socket, {
      host,
      protocol: 'TCP',
      localAddress: plainAddress(socket.localAddress),
      localPort: socket.localPort ?? 0,
      remoteAddress: plainAddress(socket.remoteAddress),
      remotePort: socket.remotePort ?? 0,
    }),
  );
  served.push({ protocol: 'TCP', port, close: () => server.close() });
  server.listen({ port, host: address, backlog: 512 });
  await once(server, 'listening');
}

async function serveUdp(host: string, port: number, address: string): Promise<void> {
  const socket = createSocket(familyOf(address) === 4 ? 'udp4' : 'udp6');
  served.push({ protocol: 'UDP', port, close: () => socket.close() });
  socket.on('message', (message, { address: remoteAddress, port: remotePort }) => {
    const reply: ServerReply = {
      host,
      protocol: 'UDP',
      localAddress: address,
      localPort: port,
      remoteAddress: plainAddress(remoteAddress),
      remotePort,
    };
    const answer = udpAnswer(reply, message);
    // An answer that cannot be sent is treated as lost.
    if (answer) socket.send(answer, remotePort, remoteAddress, () => undefined);
  });
  socket.bind(port, address);
  await once(socket, 'listening');
  // An ICMP error caused by an earlier answer.
  socket.on('error', () => undefined);
}
