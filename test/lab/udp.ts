/** UDP probes from a host's thread. */
import { createSocket } from 'node:dgram';
import { isPortUnreachable, listenForErrors, onError } from './icmp.ts';
import { openWithoutChecksum } from './libc.ts';
import type { ProbeRequest } from './messages.ts';
import type { ProbeOutcome, ServerReply } from './outcomes.ts';
import { familyOf, IPPROTO } from './packets.ts';

/** Prefix of every answer of a lab server. Servers do not answer datagrams with this prefix. */
export const REPLY_MARK = '{"host":';

/** Sends one datagram from a connected socket and waits for the answer. */
export function probeUdp(request: ProbeRequest): Promise<ProbeOutcome> {
  const { address, port, timeoutMs, localPort, localAddress, payload = 'probe' } = request;
  const { hops, hasChecksum = true } = request;
  const family = familyOf(address);
  listenForErrors(family);
  const since = performance.now();
  return new Promise((resolve) => {
    const socket = createSocket(family === 4 ? 'udp4' : 'udp6');
    let cancelError = () => {};
    let done = false;
    const finish = (outcome: ProbeOutcome) => {
      if (done) return;
      done = true;
      clearTimeout(timer);
      cancelError();
      socket.close();
      resolve(outcome);
    };
    const timer = setTimeout(() => finish({ outcome: 'timeout' }), timeoutMs);
    const fail = (error: NodeJS.ErrnoException) => {
      const code = error.code ?? error.message;
      // A local OUTPUT rule rejected or dropped the datagram. REJECT also sends an ICMP error; DROP
      // is silent.
      if (code === 'EPERM') return;
      if (code !== 'ECONNREFUSED') finish({ outcome: 'error', code });
      else finish({ outcome: 'refused', by: 'icmp' });
    };
    socket.on('error', fail);
    socket.on('message', (message: Buffer) => {
      const reply = JSON.parse(message.toString()) as ServerReply;
      finish({ outcome: 'answered', reply, localPort: socket.address().port });
    });
    socket.once('listening', () => {
      if (done) return;
      if (hops !== undefined) socket.setTTL(hops);
      socket.connect(port, address, (error?: Error) => {
        if (done) return;
        if (error) return fail(error);
        const flow = {
          protocol: IPPROTO.udp,
          localPort: socket.address().port,
          remoteAddress: address,
          remotePort: port,
        };
        cancelError = onError(flow, since, (icmp) => {
          const { type, code } = icmp;
          if (isPortUnreachable(icmp)) finish({ outcome: 'refused', by: 'icmp' });
          else finish({ outcome: 'error', code: `ICMP_${type}_${code}` });
        });
        socket.send(payload, (sendError) => {
          if (sendError && !done) fail(sendError);
        });
      });
    });
    if (hasChecksum)
      socket.bind({ port: localPort ?? 0, ...(localAddress ? { address: localAddress } : {}) });
    else socket.bind({ fd: openWithoutChecksum(localAddress ?? '0.0.0.0', localPort ?? 0) });
  });
}
