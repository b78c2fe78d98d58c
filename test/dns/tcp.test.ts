import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { TCP_LIMITS, TcpConnections } from '../../dns/tcp.ts';
import { waitFor } from '../lab/wait.ts';
import { framed } from './fake-resolver.ts';
import { queryBytes } from './messages.ts';

/** More than the connections that one address may keep. */
const CLIENTS = 30;

describe('DNS over TCP: bounds', () => {
  const connections = new TcpConnections(TCP_LIMITS);
  const clients: Socket[] = [];
  let server: Server | undefined;
  afterEach(() => {
    for (const client of clients) client.destroy();
    connections.close();
    server?.close();
  });

  it(`answers ${CLIENTS} clients at once that share an address`, async () => {
    let accepted = 0;
    const query = framed(queryBytes('a.example', 'A'));
    server = createServer({ allowHalfOpen: true }, (socket) => {
      // As seen from another host: loopback addresses have no bound of their own.
      Object.defineProperty(socket, 'remoteAddress', { value: '192.0.2.1' });
      connections.add(socket, (bytes) => bytes);
      accepted += 1;
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    for (let count = 0; count < CLIENTS; count++) {
      clients.push(connect({ port, host: '127.0.0.1' }));
    }
    const ask = async (client: Socket) => {
      const outcome = Promise.race([once(client, 'data'), once(client, 'close')]);
      await waitFor('all connections', () => accepted === CLIENTS);
      client.write(query);
      const [bytes] = await outcome;
      return Buffer.isBuffer(bytes) && bytes.equals(query);
    };
    const answered = await Promise.all(clients.map(ask));
    assert.equal(answered.filter(Boolean).length, CLIENTS);
  });
});
