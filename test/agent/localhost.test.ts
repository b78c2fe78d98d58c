import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server } from 'node:net';
import { isDeepStrictEqual } from 'node:util';
import { Counter } from 'prom-client';
import { localhostNodePorts } from '../../agent/localhost.ts';
import { waitFor } from '../lab/wait.ts';

const counter = (name: string, ...labelNames: string[]) =>
  new Counter({ name, help: name, labelNames: ['ip_family', ...labelNames], registers: [] });

const LOG = { debug() {}, info() {}, warn() {}, error() {} };

describe('localhost: localhostNodePorts', () => {
  const servers: Server[] = [];
  let proxy: ReturnType<typeof localhostNodePorts> | undefined;
  afterEach(async () => {
    await proxy?.drain(0);
    for (const server of servers.splice(0)) server.close();
  });

  async function takenPort(server = createServer()): Promise<number> {
    servers.push(server);
    server.listen({ host: '127.0.0.1', port: 0 });
    await once(server, 'listening');
    return (server.address() as AddressInfo).port;
  }

  it('reports a failure again when the Service gets another node port or is recreated', async () => {
    const [one, two] = [await takenPort(), await takenPort()];
    const failures = counter('failures');
    const reported: string[] = [];
    proxy = localhostNodePorts(
      ['IPv4'],
      { localhostListenFailures: failures, localhostConnections: counter('some', 'result') },
      LOG,
      (service, message) => reported.push(`${service}: ${message}`),
    );
    const serve = (port: number) =>
      proxy?.update([
        {
          id: 'web',
          serviceKey: 'default/web',
          family: 'IPv4',
          port,
          endpoints: [{ address: '10.244.0.1', port: 80 }],
          affinitySeconds: 0,
        },
      ]);
    for (const [attempt, port] of [one, two, 0, two].entries()) {
      serve(port);
      if (port > 0) {
        await waitFor(`attempt ${attempt} is reported`, () =>
          reported.at(-1)?.includes(`${port} cannot`),
        );
      }
    }
    await waitFor('all are reported', () => reported.length === 3);
    assert.equal((await failures.get()).values[0]?.value, 3);
  });

  it('counts connections by whether an endpoint accepted them', async () => {
    const pod = await takenPort(createServer((socket) => socket.end('well')));
    const [gone, nodePort] = [await takenPort(), await takenPort()];
    for (const server of servers.splice(-2)) await new Promise((resolve) => server.close(resolve));
    const connections = counter('connections', 'result');
    proxy = localhostNodePorts(
      ['IPv4'],
      { localhostListenFailures: counter('failures'), localhostConnections: connections },
      LOG,
      assert.fail,
    );
    const counts = async () => {
      const { values } = await connections.get();
      return Object.fromEntries(values.map(({ labels, value }) => [String(labels.result), value]));
    };
    for (const [port, expected] of [
      [pod, { forwarded: 1, failed: 0 }],
      [gone, { forwarded: 1, failed: 1 }],
    ] as const) {
      const endpoints = [{ address: '127.0.0.1', port }];
      const key = { id: 'web', serviceKey: 'default/web', family: 'IPv4' } as const;
      proxy.update([{ ...key, port: nodePort, endpoints, affinitySeconds: 0 }]);
      await waitFor('a connection is accepted', () => {
        const client = connect(nodePort, '127.0.0.1').resume();
        // The proxy resets it when no endpoint accepts it.
        client.on('error', () => {});
        return once(client, 'connect').then(
          () => true,
          () => false,
        );
      });
      await waitFor(`it is counted as ${JSON.stringify(expected)}`, async () =>
        isDeepStrictEqual(await counts(), expected),
      );
    }
  });
});
