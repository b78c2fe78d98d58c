import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { type AddressInfo, createServer as createTcpServer, type Server } from 'node:net';
import { loadClusterConfig } from '../../../sources/kubernetes/config.ts';
import {
  explainConnection,
  statusAdvice,
  withoutNodeAdvice,
} from '../../../sources/kubernetes/explain-failure.ts';
import { createOpenSession, TIMEOUTS } from '../../../sources/kubernetes/session.ts';

const SERVER = 'https://api.example:6443';
const PROXY = 'http://proxy.example:3128';
const failure = (code: string, message = 'message of Node', more: object = {}) =>
  Object.assign(new Error(message), { code, ...more });
const openssl = (reason: string) =>
  `write EPROTO 40:error:0A:SSL routines:tls_validate_record_header:${reason}:../x.c:77:\n`;

const CASES: readonly [Error, RegExp][] = [
  [failure('ECONNREFUSED'), /refused the connection: .*check "server" in the kubeconfig/],
  [failure('ECONNRESET'), /closed the connection: it is restarting, or a load balancer/],
  [failure('EPIPE'), /closed the connection/],
  [failure('ETIMEDOUT', 'no data for 30 s'), /does not respond \(no data for 30 s\): check routes/],
  [failure('EHOSTUNREACH'), /cannot be reached: the node has no route/],
  [failure('ENETUNREACH'), /cannot be reached: the node has no route/],
  [failure('ENOTFOUND'), /DNS has no address for api\.example; check "server"/],
  [failure('EAI_AGAIN'), /no DNS server answers for api\.example; check resolv\.conf/],
  [
    failure('UNABLE_TO_VERIFY_LEAF_SIGNATURE'),
    /from an untrusted authority: certificate-authority/,
  ],
  [failure('SELF_SIGNED_CERT_IN_CHAIN'), /from an untrusted authority: certificate-authority/],
  [
    failure('UNABLE_TO_GET_ISSUER_CERT_LOCALLY'),
    /from an untrusted authority: certificate-authority/,
  ],
  [
    failure('ERR_TLS_CERT_ALTNAME_INVALID', '', { cert: { subjectaltname: 'DNS:other.example' } }),
    /other names \(DNS:other\.example\): .* instead of api\.example, or as tls-server-name/,
  ],
  [failure('CERT_HAS_EXPIRED'), /an expired certificate: renew it, or correct the clock/],
  [failure('CERT_NOT_YET_VALID'), /not valid yet: check the clock/],
  [failure('ERR_OSSL_X509_KEY_VALUES_MISMATCH'), /client-key does not belong to client-cert/],
  [failure('ERR_SSL_TLSV13_ALERT_CERTIFICATE_REQUIRED'), /rejected the client certificate/],
  [failure('ERR_SSL_TLSV1_ALERT_UNKNOWN_CA'), /rejected the client certificate/],
  [
    failure('EPROTO', openssl('wrong version number')),
    /does not use TLS on this port: .* http:\/\//,
  ],
  [
    failure('EPROTO', openssl('no protocols available')),
    /failed the TLS handshake \(no protocols available\)/,
  ],
  [failure('HPE_INVALID_CONSTANT'), /does not use HTTP on this port; check "server"/],
  [failure('EMFILE'), /too many open files/],
];

describe('explain-failure: explaining a failed request to the API server', () => {
  for (const [error, words] of CASES) {
    const { code } = error as Error & { code: string };
    it(`names the server, the cause and the advice for ${code}`, () => {
      const text = explainConnection(error, { server: SERVER });
      assert.match(text, words);
      assert.ok(text.startsWith(`${SERVER} `));
      assert.ok(text.endsWith(` (${code})`));
      assert.doesNotMatch(text, /message of Node|\.c:/);
    });
  }

  it('names the proxy or the server behind a proxy', () => {
    const target = { server: SERVER, proxyUrl: PROXY };
    for (const code of ['ECONNREFUSED', 'ENOTFOUND', 'ERR_PROXY_TUNNEL']) {
      const text = explainConnection(failure(code), target);
      assert.match(text, /^the proxy http:\/\/proxy\.example:3128 .*check "proxy-url"/);
    }
    assert.ok(explainConnection(failure('CERT_HAS_EXPIRED'), target).startsWith(SERVER));
  });

  it('keeps other messages without the advice of Node', () => {
    const message =
      'odd; if the root CA is installed locally, try running Node.js with --use-system-ca';
    assert.equal(explainConnection(failure('EODD', message), { server: SERVER }), 'odd');
    const plain = withoutNodeAdvice(failure('EODD', message));
    assert.ok(plain instanceof Error && 'code' in plain);
    assert.deepEqual([plain.message, plain.code], ['odd', 'EODD']);
    const cause = failure('EODD', 'odd');
    assert.equal(withoutNodeAdvice(cause), cause);
    assert.equal(
      explainConnection(failure('ENOENT', 'tokenFile: gone'), undefined),
      'tokenFile: gone',
    );
  });

  it('names the missing permission for 403', () => {
    const path = '/apis/discovery.k8s.io/v1/endpointslices';
    const advice = (method: string, at: string, query = {}) =>
      statusAdvice(403, 'User "x" cannot do this', { method, path: at, query });
    assert.match(
      advice('GET', path, { watch: 'true' }),
      /permission to watch endpointslices in the API group discovery\.k8s\.io: apply rbac\.yaml/,
    );
    assert.match(
      statusAdvice(403, 'User "system:anonymous" cannot', { method: 'GET', path, query: {} }),
      /treats the request as anonymous/,
    );
    assert.match(advice('GET', '/api/v1/namespaces/x/services'), /permission to list services:/);
    const events = '/apis/events.k8s.io/v1/namespaces/default/events';
    assert.match(
      advice('POST', events),
      /permission to create events in the API group events\.k8s\.io/,
    );
    assert.match(advice('PATCH', `${events}/a`), /permission to patch events/);
  });

  describe('responses from other servers', () => {
    let server: Server;
    const ask = async (timeouts = TIMEOUTS) => {
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
      const { port } = server.address() as AddressInfo;
      const { signal } = new AbortController();
      const config = await loadClusterConfig({ master: `http://127.0.0.1:${port}` });
      const session = await createOpenSession(config, timeouts)(signal);
      try {
        for await (const _part of session.list('/api/v1/services', {}));
        return 'a list';
      } catch (error) {
        return error instanceof Error ? error.message : error;
      } finally {
        session.close();
        server.close();
      }
    };

    for (const [what, code, text, words] of [
      [
        'an HTML page',
        200,
        '<html></html>',
        /is not JSON; check that the address belongs to an API/,
      ],
      ['an HTML error page', 502, '<html></html>', /: 502: the response is not from an API server/],
      [
        'a TLS server',
        400,
        'Client sent an HTTP request to an HTTPS server.\n',
        /: 400: the server uses TLS: .* must be an https:\/\//,
      ],
      ['401 without a body', 401, '', /: 401: the credentials are invalid or expired/],
      [
        '404 without a Status',
        404,
        '404 page not found\n',
        /: 404: the server does not have this path/,
      ],
    ] as const) {
      it(`explains ${what}`, async () => {
        server = createServer((_request, response) => {
          response.writeHead(code, { connection: 'close' }).end(text);
        });
        assert.match(String(await ask()), words);
      });
    }

    it('explains a server that does not respond', async () => {
      server = createTcpServer();
      const words = /127\.0\.0\.1:\d+ does not respond \(no data for 0\.1 s\)/;
      assert.match(String(await ask({ ...TIMEOUTS, response: 100 })), words);
    });
  });
});
