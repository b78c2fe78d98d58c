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
const failure = (code: string, message = 'as Node says it', more: object = {}) =>
  Object.assign(new Error(message), { code, ...more });
const openssl = (reason: string) =>
  `write EPROTO 40:error:0A:SSL routines:tls_validate_record_header:${reason}:../x.c:77:\n`;

const CASES: readonly [Error, RegExp][] = [
  [failure('ECONNREFUSED'), /refuses connections: .*check the server of the kubeconfig/],
  [failure('ECONNRESET'), /closed the connection: it is being restarted, or a load balancer/],
  [failure('EPIPE'), /closed the connection/],
  [failure('ETIMEDOUT', 'nothing for 30 s'), /does not answer \(nothing for 30 s\): check routes/],
  [failure('EHOSTUNREACH'), /cannot be reached: the node has no route/],
  [failure('ENETUNREACH'), /cannot be reached: the node has no route/],
  [failure('ENOTFOUND'), /DNS does not know the name api\.example; check the server/],
  [failure('EAI_AGAIN'), /no DNS server answers for the name api\.example; check resolv\.conf/],
  [failure('UNABLE_TO_VERIFY_LEAF_SIGNATURE'), /not trusted here: the certificate-authority/],
  [failure('SELF_SIGNED_CERT_IN_CHAIN'), /not trusted here: the certificate-authority/],
  [failure('UNABLE_TO_GET_ISSUER_CERT_LOCALLY'), /not trusted here: the certificate-authority/],
  [
    failure('ERR_TLS_CERT_ALTNAME_INVALID', '', { cert: { subjectaltname: 'DNS:other.example' } }),
    /it is for DNS:other\.example; .* instead of api\.example, or as tls-server-name/,
  ],
  [failure('CERT_HAS_EXPIRED'), /has expired: renew it, or correct the clock/],
  [failure('CERT_NOT_YET_VALID'), /not valid yet: check the clock/],
  [failure('ERR_OSSL_X509_KEY_VALUES_MISMATCH'), /client-key does not belong to client-cert/],
  [failure('ERR_SSL_TLSV13_ALERT_CERTIFICATE_REQUIRED'), /does not accept the client certificate/],
  [failure('ERR_SSL_TLSV1_ALERT_UNKNOWN_CA'), /does not accept the client certificate/],
  [failure('EPROTO', openssl('wrong version number')), /does not speak TLS: .* http:\/\//],
  [failure('EPROTO', openssl('no protocols available')), /on TLS \(no protocols available\)/],
  [failure('HPE_INVALID_CONSTANT'), /does not speak HTTP; check the server/],
  [failure('EMFILE'), /too many open files/],
];

describe('reasons: why a request to the API server failed', () => {
  for (const [error, words] of CASES) {
    const { code } = error as Error & { code: string };
    it(`${code}: the server, what it means, what to do, the code`, () => {
      const text = explainConnection(error, { server: SERVER });
      assert.match(text, words);
      assert.ok(text.startsWith(`${SERVER} `));
      assert.ok(text.endsWith(` (${code})`));
      assert.doesNotMatch(text, /as Node says it|\.c:/);
    });
  }

  it('behind a proxy: which of the two does not answer', () => {
    const target = { server: SERVER, proxyUrl: PROXY };
    for (const code of ['ECONNREFUSED', 'ENOTFOUND', 'ERR_PROXY_TUNNEL']) {
      const text = explainConnection(failure(code), target);
      assert.match(text, /^the proxy http:\/\/proxy\.example:3128 .*check the proxy-url/);
    }
    assert.ok(explainConnection(failure('CERT_HAS_EXPIRED'), target).startsWith(SERVER));
  });

  it('of other reasons, as they are, but without advice for those who run Node', () => {
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

  it('403: which right is missing', () => {
    const path = '/apis/discovery.k8s.io/v1/endpointslices';
    const advice = (method: string, at: string, query = {}) =>
      statusAdvice(403, 'User "x" cannot do this', { method, path: at, query });
    assert.match(
      advice('GET', path, { watch: 'true' }),
      /right to watch endpointslices of the API group discovery\.k8s\.io: apply rbac\.yaml/,
    );
    assert.match(
      statusAdvice(403, 'User "system:anonymous" cannot', { method: 'GET', path, query: {} }),
      /did not accept the credentials/,
    );
    assert.match(advice('GET', '/api/v1/namespaces/x/services'), /right to list services:/);
    const events = '/apis/events.k8s.io/v1/namespaces/default/events';
    assert.match(advice('POST', events), /right to create events of the API group events\.k8s\.io/);
    assert.match(advice('PATCH', `${events}/a`), /right to patch events/);
  });

  describe('of what answers in the place of an API server', () => {
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
      ['a page', 200, '<html></html>', /is not JSON; something else than an API server may/],
      ['a page with an error', 502, '<html></html>', /: 502: something else .* such as a proxy/],
      [
        'a server of TLS',
        400,
        'Client sent an HTTP request to an HTTPS server.\n',
        /: 400: the server speaks TLS: .* must be https:\/\//,
      ],
      ['401 without more', 401, '', /: 401: the credentials are not valid, or not any more/],
      ['404 without more', 404, '404 page not found\n', /: 404: it does not know this path/],
    ] as const) {
      it(what, async () => {
        server = createServer((_request, response) => {
          response.writeHead(code, { connection: 'close' }).end(text);
        });
        assert.match(String(await ask()), words);
      });
    }

    it('one that is silent', async () => {
      server = createTcpServer();
      const words = /127\.0\.0\.1:\d+ does not answer \(nothing for 0\.1 s\)/;
      assert.match(String(await ask({ ...TIMEOUTS, answer: 100 })), words);
    });
  });
});
