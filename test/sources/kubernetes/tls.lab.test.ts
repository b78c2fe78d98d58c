import assert from 'node:assert/strict';
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { join } from 'node:path';
import { stdSerializers } from 'pino';
import { loadClusterConfig } from '../../../sources/kubernetes/config.ts';
import { createOpenSession, TIMEOUTS } from '../../../sources/kubernetes/session.ts';
import { Authority, type Certificate, pemOf } from '../../api-server/certificates.ts';
import { ApiServerDouble } from '../../api-server/double.ts';
import { service } from './source-fixture.ts';

describe('tls: HTTPS to the API server', () => {
  let ca: Authority;
  let other: Authority;
  let certificate: Certificate;
  let named: Certificate;
  let double: ApiServerDouble;

  before(async () => {
    [ca, other] = await Promise.all([Authority.create(), Authority.create()]);
    [certificate, named] = await Promise.all([
      ca.issue('by-address', ['IP:127.0.0.1']),
      ca.issue('by-name', ['DNS:api.example']),
    ]);
  });
  after(() => {
    ca?.destroy();
    other?.destroy();
  });
  afterEach(() => double.close());

  const serve = async (server: Certificate, clientCa?: string) => {
    double = new ApiServerDouble({
      tls: { ...pemOf(server), ...(clientCa && { clientCa: readFileSync(clientCa, 'utf8') }) },
    });
    await double.listen();
    double.put(service('a', 1));
  };
  const opener = async (cluster: object, user: object = {}) => {
    const kubeconfig = join(ca.directory, 'kubeconfig');
    const config = {
      clusters: [{ name: 'c', cluster: { server: double.url, ...cluster } }],
      users: [{ name: 'u', user }],
      contexts: [{ name: 'x', context: { cluster: 'c', user: 'u' } }],
      'current-context': 'x',
    };
    writeFileSync(kubeconfig, JSON.stringify(config));
    return createOpenSession(await loadClusterConfig({ kubeconfig }), TIMEOUTS);
  };
  /** Number of items of a list. */
  const list = async (open: Awaited<ReturnType<typeof opener>>) => {
    const { signal } = new AbortController();
    const session = await open(signal);
    try {
      let items = 0;
      for await (const part of session.list('/api/v1/services', {})) {
        if ('item' in part) items++;
      }
      return items;
    } finally {
      session.close();
    }
  };

  it('trusts only the configured certificate authority', async () => {
    await serve(certificate);
    assert.equal(await list(await opener({ 'certificate-authority': ca.cert })), 1);
    const data = readFileSync(ca.cert).toString('base64');
    assert.equal(await list(await opener({ 'certificate-authority-data': data })), 1);
    await assert.rejects(
      list(await opener({ 'certificate-authority': other.cert })),
      /from an untrusted authority/,
    );
    await assert.rejects(list(await opener({})), (error) => {
      // Neither the message nor the cause, which verbose logs print, has Node's advice.
      assert.doesNotMatch(JSON.stringify(stdSerializers.err(error as Error)), /Node\.js/);
      return true;
    });
    assert.equal(await list(await opener({ 'insecure-skip-tls-verify': true })), 1);
  });

  it('verifies the configured server name', async () => {
    await serve(named);
    const authority = { 'certificate-authority': ca.cert };
    await assert.rejects(
      list(await opener(authority)),
      /127\.0\.0\.1:\d+ has a certificate for other names \(DNS:api\.example\): .* use one/,
    );
    assert.equal(await list(await opener({ ...authority, 'tls-server-name': 'api.example' })), 1);
    const wrong = { ...authority, 'tls-server-name': 'other.example' };
    await assert.rejects(list(await opener(wrong)), /other names \(DNS:api\.example\)/);
  });

  it('sends the client certificate, and the new certificate after rotation', async () => {
    await serve(certificate, ca.cert);
    const cluster = { 'certificate-authority': ca.cert };
    await assert.rejects(list(await opener(cluster)), /./);
    const [good, bad] = await Promise.all([ca.issue('client'), other.issue('client')]);
    const user = {
      'client-certificate': join(ca.directory, 'current.crt'),
      'client-key': join(ca.directory, 'current.key'),
    };
    const rotate = ({ cert, key }: Certificate) => {
      copyFileSync(cert, user['client-certificate']);
      copyFileSync(key, user['client-key']);
    };
    rotate(bad);
    const open = await opener(cluster, user);
    await assert.rejects(list(open), /./);
    rotate(good);
    assert.equal(await list(open), 1);
  });

  it('uses a new certificate authority after rotation', async () => {
    await serve(await other.issue('moved', ['IP:127.0.0.1']));
    const current = join(ca.directory, 'current-ca.crt');
    copyFileSync(ca.cert, current);
    const open = await opener({ 'certificate-authority': current });
    await assert.rejects(list(open), /certificate/);
    copyFileSync(other.cert, current);
    assert.equal(await list(open), 1);
  });

  describe('behind a proxy', () => {
    let proxy: Server;
    const tunnels: string[] = [];
    before(async () => {
      proxy = createServer((request, response) => {
        tunnels.push(`${request.method} ${request.url}`);
        response.writeHead(502).end();
      });
      proxy.on('connect', (request, socket) => {
        tunnels.push(`CONNECT ${request.url}`);
        const [host, port] = (request.url ?? '').split(':');
        const onward = connect(Number(port), host, () => {
          socket.write('HTTP/1.1 200 OK\r\n\r\n');
          onward.pipe(socket).pipe(onward);
        });
        for (const end of [socket, onward]) end.on('error', () => onward.destroy());
      });
      await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve));
    });
    after(() => {
      proxy.closeAllConnections();
      proxy.close();
    });

    it('opens a tunnel and verifies the certificate of the server', async () => {
      await serve(certificate);
      const { port } = proxy.address() as AddressInfo;
      const cluster = { 'proxy-url': `http://127.0.0.1:${port}` };
      const trusting = { ...cluster, 'certificate-authority': ca.cert };
      assert.equal(await list(await opener(trusting)), 1);
      await assert.rejects(list(await opener(cluster)), /certificate/);
      assert.deepEqual(new Set(tunnels), new Set([`CONNECT ${new URL(double.url).host}`]));
    });
  });
});
