/** Tests with many concurrent connections which targets answer. */
import { randomInt } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { connect } from 'node:net';
import type { ReachRequest, ReachTarget } from './messages.ts';
import type { Family } from './outcomes.ts';
import { familyOf, IPPROTO, plainAddress, transportPart } from './packets.ts';
import { openRaw, sendRaw } from './raw.ts';
import { formatInit, INIT, INIT_ACK, parseInit } from './sctp.ts';

interface Probe extends ReachTarget {
  readonly answered: () => void;
}

/** Closes the opened sockets. */
type End = () => void;

/** See Host. */
export async function reach(request: ReachRequest): Promise<readonly boolean[]> {
  const { targets, awaited, timeoutMs, quietMs } = request;
  const reached = targets.map(() => false);
  const enough = Promise.withResolvers<void>();
  let count = 0;
  const markAnswered = (index: number) => {
    if (reached[index]) return;
    reached[index] = true;
    count += 1;
    if (count >= awaited) enough.resolve();
  };
  const probes = targets.map((target, index) => ({
    ...target,
    answered: () => markAnswered(index),
  }));
  const ends = await Promise.all([
    ...probes.filter(({ protocol }) => protocol === 'TCP').map(tcp),
    ...([4, 6] as const).flatMap((family) => {
      const of = (protocol: string) =>
        probes.filter((each) => each.protocol === protocol && familyOf(each.address) === family);
      return [udp(family, of('UDP')), sctp(family, of('SCTP'))];
    }),
  ]);
  if (awaited === 0) enough.resolve();
  const timer = setTimeout(enough.resolve, timeoutMs);
  await enough.promise;
  clearTimeout(timer);
  await new Promise((resolve) => {
    setTimeout(resolve, quietMs);
  });
  for (const end of ends) end();
  return reached;
}

function tcp({ address, port, answered }: Probe): End {
  const socket = connect({ host: address, port, family: familyOf(address) });
  socket.once('connect', () => {
    answered();
    // A reset leaves no state on either side.
    socket.resetAndDestroy();
  });
  // Only the answering targets matter here.
  socket.on('error', () => undefined);
  return () => socket.destroy();
}

/** One socket for all: the source address identifies the target. */
async function udp(family: Family, probes: readonly Probe[]): Promise<End> {
  if (probes.length === 0) return () => {};
  const socket = createSocket(family === 4 ? 'udp4' : 'udp6');
  const byPeer = new Map(probes.map((probe) => [`${probe.address} ${probe.port}`, probe]));
  socket.on('message', (_, { address, port }) => {
    byPeer.get(`${plainAddress(address)} ${port}`)?.answered();
  });
  socket.on('error', () => undefined);
  socket.bind(0);
  await once(socket, 'listening');
  for (const { address, port } of probes) socket.send('probe', port, address, () => undefined);
  return () => socket.close();
}

async function sctp(family: Family, probes: readonly Probe[]): Promise<End> {
  if (probes.length === 0) return () => {};
  const socket = openRaw(family, IPPROTO.sctp);
  const byTag = new Map(probes.map((probe) => [randomInt(1, 2 ** 32 - 1), probe]));
  socket.on('message', (bytes: Buffer, { address }) => {
    const packet = parseInit(transportPart(bytes, family));
    if (packet?.type !== INIT_ACK) return;
    const probe = byTag.get(packet.verificationTag);
    if (probe?.address === plainAddress(address) && probe.port === packet.sourcePort) {
      probe.answered();
    }
  });
  for (const [initiateTag, { address, port }] of byTag) {
    const sourcePort = randomInt(32768, 61000);
    const init = { type: INIT, sourcePort, port, verificationTag: 0, initiateTag, cookie: '' };
    sendRaw(socket, formatInit(init), IPPROTO.sctp, address);
  }
  return () => socket.close();
}
