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
 * Serves ports, each by a socket of its own. All are open when the promise settles.
 *
 * @throws node's own error, such as EADDRINUSE
 */
export async function serve(host: HostIdentity, request: ServeRequest): Promise<void> {
  const { protocol, ports, address } = request;
  if (protocol === 'SCTP') {
    serveSctp(host, ports);
    return;
  }
  // A UDP answer must leave from the address that was asked, so each has its socket; TCP does so
  // anyway.
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

/** Stops serving; connections that were accepted live on. */
export function stopServing(protocol?: Protocol, ports?: readonly number[]): void {
  const goes = (one: Served) =>
    (protocol === undefined || one.protocol === protocol) &&
    (ports === undefined || ports.includes(one.port));
  for (const one of served) if (goes(one)) one.close();
  served = served.filter((one) => !goes(one));
  if (protocol === undefined || protocol === 'SCTP') stopServingSctp(ports);
}

/** Whether a UDP port has a socket of its own. */
export function servesUdp(port: number): boolean {
  return served.some((one) => one.protocol === 'UDP' && one.port === port);
}

/** Tells a TCP client who it met, and echoes what it says. */
export function greet(socket: Socket, reply: ServerReply): void {
  // The client's reset or its end by a node's rules is its own affair.
  socket.on('error', () => socket.destroy());
  socket.setNoDelay(true);
  socket.write(`${JSON.stringify(reply)}\n`);
  socket.pipe(socket);
}

/** The answer to a datagram, or undefined for one that is an answer itself: echoes must not meet. */
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
    // An answer that cannot be sent is one that was lost.
    if (answer) socket.send(answer, remotePort, remoteAddress, () => undefined);
  });
  socket.bind(port, address);
  await once(socket, 'listening');
  // An ICMP error of an earlier answer.
  socket.on('error', () => undefined);
}
