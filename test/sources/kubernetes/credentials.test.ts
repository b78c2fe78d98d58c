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

  it('sends a token, a password, and an impersonated user', async () => {
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

  it('reads the token file each time, without surrounding white space', async () => {
    const source = await sourceOf({ token: 'static', tokenFile: file('token', 'one\n') });
    assert.equal((await source.read()).headers.authorization, 'Bearer one');
    file('token', ' two ');
    assert.equal((await source.read()).headers.authorization, 'Bearer two');
    rmSync(join(directory, 'token'));
    await assert.rejects(source.read(), /^Error: tokenFile: ENOENT/);
    file('token', 'three');
    assert.equal((await source.read()).headers.authorization, 'Bearer three');
  });

  it('reads certificates each time, and prefers data to files', async () => {
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

  it('applies insecure-skip-tls-verify', async () => {
    const source = await sourceOf({}, { 'insecure-skip-tls-verify': true });
    assert.deepEqual((await source.read()).tls, { rejectUnauthorized: false });
  });

  it('names the field of a file that cannot be read', async () => {
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

  it('names the field whose data is not PEM', async () => {
    const refused = async (field: string, value: string) => {
      const other = field.startsWith('client-key') ? 'client-certificate-data' : 'client-key-data';
      const isOfCluster = field.startsWith('certificate-authority');
      const given = { [field]: value, ...(!isOfCluster && { [other]: base64(pem('other')) }) };
      const source = await (isOfCluster ? sourceOf({}, given) : sourceOf(given));
      await assert.rejects(source.read(), { message: `${field}: no PEM data found` });
    };
    for (const field of ['certificate-authority', 'client-certificate', 'client-key']) {
      await refused(field, file('text', 'x'));
      await refused(`${field}-data`, base64('x'));
      // Not base64.
      await refused(`${field}-data`, pem('x'));
    }
  });

  describe('exec credential plugin', () => {
    /** An exec credential plugin that prints the file `credential` and logs its input. */
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

    it('receives KUBERNETES_EXEC_INFO and returns a token', async () => {
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

    it('receives the cluster with provideClusterInfo', async () => {
      const exec = { ...plugin({ token: 'x' }), provideClusterInfo: true };
      const source = await sourceOf({ exec }, { 'certificate-authority': file('ca', pem('ca-1')) });
      await source.read();
      const info = JSON.parse(calls()[0]?.split(' ').slice(2).join(' ') ?? '');
      assert.deepEqual(info.spec.cluster, {
        server: 'https://127.0.0.1:1',
        'certificate-authority-data': base64(pem('ca-1')),
      });
    });

    it('returns a certificate', async () => {
      const exec = plugin({ clientCertificateData: 'PEM-C', clientKeyData: 'PEM-K' });
      const { tls, headers } = await (await sourceOf({ exec })).read();
      assert.deepEqual([tls, headers], [{ cert: 'PEM-C', key: 'PEM-K' }, {}]);
    });

    it('runs once for concurrent reads, and again when its credentials expire or are rejected', async () => {
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
      ['is missing', () => ({ command: './none' })],
      ['fails', () => plugin({ token: 'x' }, { exit: 1 })],
      ['prints no credential', () => ({ command: 'true' })],
    ] as const) {
      it(`fails with a ConnectionError and can be retried when it ${what}`, async () => {
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

    it('times out when it hangs', async () => {
      const exec = { command: 'sleep', args: ['0.5'] };
      const open = createOpenSession(await configOf({ exec }), { ...TIMEOUTS, credentials: 50 });
      const { signal } = new AbortController();
      await assert.rejects(open(signal), /reading credentials timed out after 0.05 s/);
    });

    it('does not delay the stop of an agent when it hangs', async () => {
      const open = createOpenSession(await configOf({ exec: { command: 'sleep', args: ['0.5'] } }));
      const stopping = new AbortController();
      const opening = open(stopping.signal);
      stopping.abort();
      await assert.rejects(opening, /aborted/);
    });

    it('runs again when the API server rejects its token', async () => {
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
