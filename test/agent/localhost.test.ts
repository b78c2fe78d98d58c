import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { Counter } from 'prom-client';
import { localhostNodePorts } from '../../agent/localhost.ts';
import { waitFor } from '../lab/wait.ts';

const counter = (name: string, ...labelNames: string[]) =>
  new Counter({ name, help: name, labelNames: ['ip_family', ...labelNames], registers: [] });

describe('node ports that cannot be served on localhost', () => {
  const servers: Server[] = [];
  let proxy: ReturnType<typeof localhostNodePorts> | undefined;
  afterEach(async () => {
    await proxy?.drain(0);
    for (const server of servers.splice(0)) server.close();
  });

  async function takenPort(): Promise<number> {
    const server = createServer();
    servers.push(server);
    server.listen({ host: '127.0.0.1', port: 0 });
    await once(server, 'listening');
    return (server.address() as AddressInfo).port;
  }

  it('are told anew when the Service gets another one, or is created again', async () => {
    const [one, two] = [await takenPort(), await takenPort()];
    const failures = counter('failures');
    const told: string[] = [];
    proxy = localhostNodePorts(
      ['IPv4'],
      { localhostListenFailures: failures, localhostConnections: counter('some', 'result') },
      { debug() {}, info() {}, warn() {}, error() {} },
      (service, message) => told.push(`${service}: ${message}`),
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
        await waitFor(`attempt ${attempt} is told`, () => told.at(-1)?.includes(`${port} cannot`));
      }
    }
    await waitFor('all are told', () => told.length === 3);
    assert.equal((await failures.get()).values[0]?.value, 3);
  });
});
