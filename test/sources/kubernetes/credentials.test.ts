import assert from 'node:assert/strict';
import { appendFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadClusterConfig } from '../../../sources/kubernetes/config.ts';
import { type ClusterConfig, CredentialSource } from '../../../sources/kubernetes/credentials.ts';
import { ConnectionError } from '../../../sources/kubernetes/errors.ts';
import { createOpenSession, TIMEOUTS } from '../../../sources/kubernetes/session.ts';
import { ApiServerDouble } from '../../api-server/double.ts';

describe('credentials', () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-credentials-'));
  });
  afterEach(() => rmSync(directory, { recursive: true, force: true }));

  const file = (name: string, text: string) => {
    writeFileSync(join(directory, name), text, { mode: 0o700 });
    return name;
  };
  const pem = (text: string) => `-----BEGIN X-----\n${text}\n-----END X-----\n`;
  const base64 = (text: string) => Buffer.from(text).toString('base64');
  const configOf = (user: object, cluster: object = {}): Promise<ClusterConfig> => {
    const config = {
      clusters: [{ name: 'c', cluster: { server: 'https://127.0.0.1:1', ...cluster } }],
      users: [{ name: 'u', user }],
      contexts: [{ name: 'x', context: { cluster: 'c', user: 'u' } }],
      'current-context': 'x',
    };
    return loadClusterConfig({
      kubeconfig: join(directory, file('config', JSON.stringify(config))),
    });
  };
  const sourceOf = async (...args: Parameters<typeof configOf>) =>
    new CredentialSource(await configOf(...args));

  it('a token, a password, another’s identity', async () => {
    const headers = async (user: object) => (await (await sourceOf(user)).read()).headers;
    assert.deepEqual(await headers({ token: 'secret' }), { authorization: 'Bearer secret' });
    assert.deepEqual(await headers({ username: 'me', password: 'pw' }), {
      authorization: `Basic ${base64('me:pw')}`,
    });
    assert.deepEqual(await headers({ token: 'secret', as: 'other' }), {
      authorization: 'Bearer secret',
      'impersonate-user': 'other',
    });
    assert.deepEqual(await headers({}), {});
  });

  it('a token file is read each time, without the white space around', async () => {
    const source = await sourceOf({ token: 'static', tokenFile: file('token', 'one\n') });
    assert.equal((await source.read()).headers.authorization, 'Bearer one');
    file('token', ' two ');
    assert.equal((await source.read()).headers.authorization, 'Bearer two');
    rmSync(join(directory, 'token'));
    await assert.rejects(source.read(), /^Error: tokenFile: ENOENT/);
    file('token', 'three');
    assert.equal((await source.read()).headers.authorization, 'Bearer three');
  });

  it('certificates are read each time; data takes precedence over files', async () => {
    const source = await sourceOf(
      {
        'client-certificate': file('cert', pem('cert-1')),
        'client-certificate-data': base64(pem('cert-data')),
        'client-key': file('key', pem('key-1')),
      },
      { 'certificate-authority': file('ca', pem('ca-1')), 'tls-server-name': 'api.example' },
    );
    const read = async () => {
      const { ca, cert, key, ...rest } = (await source.read()).tls;
      return { texts: [ca, cert, key].map(String), rest };
    };
    assert.deepEqual(await read(), {
      texts: ['ca-1', 'cert-data', 'key-1'].map(pem),
      rest: { servername: 'api.example' },
    });
    file('ca', pem('ca-2'));
    file('key', pem('key-2'));
    assert.deepEqual((await read()).texts, ['ca-2', 'cert-data', 'key-2'].map(pem));
  });

  it('insecure-skip-tls-verify', async () => {
    const source = await sourceOf({}, { 'insecure-skip-tls-verify': true });
    assert.deepEqual((await source.read()).tls, { rejectUnauthorized: false });
  });

  it('what cannot be read is named', async () => {
    const missing = join(directory, 'missing');
    const unreadable = async (user: object, cluster: object = {}) =>
      assert.rejects((await sourceOf(user, cluster)).read(), (error: Error) => {
        assert.match(
          error.message,
          new RegExp(`^${Object.keys({ ...user, ...cluster })[0]}: ENOENT`),
        );
        return true;
      });
    await unreadable({ 'client-certificate': missing, 'client-key-data': base64(pem('key')) });
    await unreadable({ 'client-key': missing, 'client-certificate-data': base64(pem('cert')) });
    await unreadable({}, { 'certificate-authority': missing });
  });

  it('what is no PEM is named', async () => {
    const refused = async (field: string, value: string) => {
      const other = field.startsWith('client-key') ? 'client-certificate-data' : 'client-key-data';
      const isOfCluster = field.startsWith('certificate-authority');
      const given = { [field]: value, ...(!isOfCluster && { [other]: base64(pem('other')) }) };
      const source = await (isOfCluster ? sourceOf({}, given) : sourceOf(given));
      await assert.rejects(source.read(), { message: `${field}: there is no PEM in it` });
    };
    for (const field of ['certificate-authority', 'client-certificate', 'client-key']) {
      await refused(field, file('text', 'x'));
      await refused(`${field}-data`, base64('x'));
      // Not encoded.
      await refused(`${field}-data`, pem('x'));
    }
  });

  describe('of a plugin', () => {
    /** A credential plugin that prints what a file has, and writes down what it was told. */
    const plugin = (status: object, { exit = 0 } = {}) => {
      const credential = { apiVersion: 'client.authentication.k8s.io/v1', kind: 'ExecCredential' };
      file('credential', JSON.stringify({ ...credential, status }));
      const command = `./${file(
        'plugin',
        `#!/bin/sh\ncd "${directory}"\nprintf '%s %s %s\\n' "$1" "$COLOUR" "$KUBERNETES_EXEC_INFO" >> calls\ncat credential\nexit ${exit}\n`,
      )}`;
      const env = [{ name: 'COLOUR', value: 'blue' }];
      appendFileSync(join(directory, 'calls'), '');
      return { command, args: ['get-token'], env, apiVersion: 'client.authentication.k8s.io/v1' };
    };
    const calls = () => readFileSync(join(directory, 'calls'), 'utf8').trim().split('\n');

    it('it is told what it is run for, and gives a token', async () => {
      const exec = plugin({ token: 'of-plugin' });
      const source = await sourceOf({ exec });
      assert.equal((await source.read()).headers.authorization, 'Bearer of-plugin');
      const info = {
        kind: 'ExecCredential',
        apiVersion: 'client.authentication.k8s.io/v1',
        spec: { interactive: false },
      };
      assert.deepEqual(calls(), [`get-token blue ${JSON.stringify(info)}`]);
    });

    it('it is told of the cluster if it asks for that', async () => {
      const exec = { ...plugin({ token: 'x' }), provideClusterInfo: true };
      const source = await sourceOf({ exec }, { 'certificate-authority': file('ca', pem('ca-1')) });
      await source.read();
      const info = JSON.parse(calls()[0]?.split(' ').slice(2).join(' ') ?? '');
      assert.deepEqual(info.spec.cluster, {
        server: 'https://127.0.0.1:1',
        'certificate-authority-data': base64(pem('ca-1')),
      });
    });

    it('a certificate', async () => {
      const exec = plugin({ clientCertificateData: 'PEM-C', clientKeyData: 'PEM-K' });
      const { tls, headers } = await (await sourceOf({ exec })).read();
      assert.deepEqual([tls, headers], [{ cert: 'PEM-C', key: 'PEM-K' }, {}]);
    });

    it('it runs once for all who ask, and again when what it gave expires or is refused', async () => {
      const exec = plugin({ token: 'one', expirationTimestamp: '2999-01-01T00:00:00Z' });
      const source = await sourceOf({ exec });
      await Promise.all([source.read(), source.read(), source.read()]);
      await source.read();
      assert.equal(calls().length, 1);
      plugin({ token: 'two', expirationTimestamp: '2001-01-01T00:00:00Z' });
      source.invalidate();
      assert.equal((await source.read()).headers.authorization, 'Bearer two');
      plugin({ token: 'three' });
      assert.equal((await source.read()).headers.authorization, 'Bearer three');
      assert.equal(calls().length, 3);
    });

    for (const [what, exec] of [
      ['is not there', () => ({ command: './none' })],
      ['fails', () => plugin({ token: 'x' }, { exit: 1 })],
      ['says nothing of use', () => ({ command: 'true' })],
    ] as const) {
      it(`one that ${what} is an error of the connection, and tried again`, async () => {
        const open = createOpenSession(await configOf({ exec: exec() }));
        const { signal } = new AbortController();
        for (let time = 0; time < 2; time++) {
          await assert.rejects(open(signal), (error: Error) => {
            assert.ok(error instanceof ConnectionError);
            assert.match(error.message, /^API server: credential plugin ".+": ./);
            return true;
          });
        }
      });
    }

    it('one that hangs is given up', async () => {
      const exec = { command: 'sleep', args: ['0.5'] };
      const open = createOpenSession(await configOf({ exec }), { ...TIMEOUTS, credentials: 50 });
      const { signal } = new AbortController();
      await assert.rejects(open(signal), /no credentials within 0.05 s/);
    });

    it('one that hangs does not hold up the end of an agent', async () => {
      const open = createOpenSession(await configOf({ exec: { command: 'sleep', args: ['0.5'] } }));
      const stopping = new AbortController();
      const opening = open(stopping.signal);
      stopping.abort();
      await assert.rejects(opening, /aborted/);
    });

    it('it runs again when the API server refuses what it gave', async () => {
      const double = new ApiServerDouble({ tokens: ['two'] });
      const server = `http://127.0.0.1:${await double.listen()}`;
      try {
        const lasting = { expirationTimestamp: '2999-01-01T00:00:00Z' };
        const exec = plugin({ token: 'one', ...lasting });
        const open = createOpenSession(await configOf({ exec }, { server }));
        const { signal } = new AbortController();
        const list = async () => {
          const session = await open(signal);
          try {
            for await (const part of session.list('/api/v1/services', {})) return part;
            return undefined;
          } finally {
            session.close();
          }
        };
        await assert.rejects(list(), { code: 401 });
        plugin({ token: 'two', ...lasting });
        assert.notEqual(await list(), undefined);
        assert.equal(calls().length, 2);
      } finally {
        await double.close();
      }
    });
  });
});
