import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { loadClusterConfig } from '../../../sources/kubernetes/config.ts';
import { ClusterConfigError } from '../../../sources/kubernetes/errors.ts';

const CONTEXT = {
  contexts: [
    { name: 'y', context: { cluster: 'none', user: 'none' } },
    { name: 'x', context: { cluster: 'c', user: 'u' } },
  ],
  'current-context': 'x',
};
const WHOLE = {
  clusters: [{ name: 'c', cluster: { server: 'https://10.0.0.1:6443/k8s/' } }],
  users: [{ name: 'u', user: { token: 'secret' } }],
  ...CONTEXT,
};
/** The kubeconfig that kubeadm creates for kube-proxy. */
const KUBEADM = `apiVersion: v1
kind: Config
clusters:
- cluster:
    certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    server: https://10.0.0.1:6443
  name: default
contexts:
- context:
    cluster: default
    namespace: default
    user: default
  name: default
current-context: default
users:
- name: default
  user:
    tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
`;

describe('config: kubernetes configuration', () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-kubeconfig-'));
  });
  afterEach(() => rmSync(directory, { recursive: true, force: true }));

  const write = (config: unknown): string => {
    const path = join(directory, 'config');
    writeFileSync(path, typeof config === 'string' ? config : JSON.stringify(config));
    return path;
  };
  const withUser = (user: object) => ({ ...WHOLE, users: [{ name: 'u', user }] });
  const withCluster = (cluster: object) => ({
    ...WHOLE,
    clusters: [{ name: 'c', cluster: { server: 'https://10.0.0.1', ...cluster } }],
  });

  it('reads a kubeconfig, and --master overrides its server', async () => {
    const kubeconfig = write(WHOLE);
    const { server, user } = await loadClusterConfig({ kubeconfig });
    assert.deepEqual([server, user.token], ['https://10.0.0.1:6443/k8s', 'secret']);
    const other = await loadClusterConfig({ kubeconfig, master: 'http://127.0.0.1:8080' });
    assert.deepEqual([other.server, other.user.token], ['http://127.0.0.1:8080', 'secret']);
  });

  it('reads tokenFile of kubeadm’s kubeconfig', async () => {
    const { server, cluster, tokenFile } = await loadClusterConfig({ kubeconfig: write(KUBEADM) });
    assert.equal(server, 'https://10.0.0.1:6443');
    assert.equal(cluster.caFile, '/var/run/secrets/kubernetes.io/serviceaccount/ca.crt');
    assert.equal(tokenFile, '/var/run/secrets/kubernetes.io/serviceaccount/token');
  });

  it('resolves file names relative to the kubeconfig', async () => {
    const config = {
      ...withCluster({ 'certificate-authority': 'ca.crt' }),
      users: [
        {
          name: 'u',
          user: {
            'client-certificate': 'tls/client.crt',
            'client-key': '/etc/client.key',
            tokenFile: '../token',
            exec: { command: './plugin', args: ['./a'] },
          },
        },
      ],
    };
    const { cluster, user, tokenFile } = await loadClusterConfig({ kubeconfig: write(config) });
    assert.equal(cluster.caFile, join(directory, 'ca.crt'));
    assert.equal(user.certFile, join(directory, 'tls/client.crt'));
    assert.equal(user.keyFile, '/etc/client.key');
    assert.equal(tokenFile, join(tmpdir(), 'token'));
    assert.deepEqual(user.exec, { command: join(directory, 'plugin'), args: ['./a'] });
    const found = withUser({ exec: { command: 'plugin' } });
    const inPath = await loadClusterConfig({ kubeconfig: write(found) });
    assert.equal(inPath.user.exec.command, 'plugin');
  });

  it('accepts a context without a user, and --master without a kubeconfig', async () => {
    const contexts = [{ name: 'x', context: { cluster: 'c' } }];
    const anonymous = await loadClusterConfig({ kubeconfig: write({ ...WHOLE, contexts }) });
    assert.deepEqual([anonymous.user.token, anonymous.tokenFile], [undefined, undefined]);
    const { server, user } = await loadClusterConfig({ master: 'http://10.0.0.1:8080/' });
    assert.deepEqual([server, user.token], ['http://10.0.0.1:8080', undefined]);
  });

  describe('in a pod', () => {
    const { KUBERNETES_SERVICE_HOST: host, KUBERNETES_SERVICE_PORT: port } = process.env;
    const setPod = (podHost: string | undefined, podPort: string | undefined) => {
      for (const [name, value] of [
        ['KUBERNETES_SERVICE_HOST', podHost],
        ['KUBERNETES_SERVICE_PORT', podPort],
      ] as const) {
        if (value === undefined) delete process.env[name];
        else process.env[name] = value;
      }
    };
    afterEach(() => setPod(host, port));

    for (const [address, server] of [
      ['10.96.0.1', 'https://10.96.0.1:443'],
      ['fd00::1', 'https://[fd00::1]:443'],
    ]) {
      it(`uses the service account with the API server at ${address}`, async () => {
        setPod(address, '443');
        const config = await loadClusterConfig({}, '/sa');
        assert.equal(config.server, server);
        assert.equal(config.cluster.caFile, '/sa/ca.crt');
        assert.equal(config.tokenFile, '/sa/token');
      });
    }

    it('fails outside a pod without flags', async () => {
      setPod(undefined, undefined);
      await assert.rejects(loadClusterConfig({}), /neither --kubeconfig nor --master/);
    });
  });

  it('rejects a --master that is not a URL', async () => {
    await assert.rejects(
      loadClusterConfig({ master: 'kube' }),
      /: --master "kube" is not an http or https URL/,
    );
  });

  for (const text of [
    'users:\n  - user:\n      password: abc: SECRET',
    'users: [{user: {token: "SECRET',
    'users: [{user: {token: [SECRET}}]',
    'users: [{user: {token: *SECRET}}]',
    'users: [{user: {token: !SECRET x}}',
  ]) {
    it(`does not quote credentials of a file that is not YAML: ${JSON.stringify(text)}`, async () => {
      await assert.rejects(loadClusterConfig({ kubeconfig: write(text) }), (error) => {
        assert.ok(error instanceof ClusterConfigError);
        assert.match(error.message, /is not valid YAML/);
        assert.doesNotMatch(inspect(error), /SECRET/);
        return true;
      });
    });
  }

  for (const [what, config, pattern] of [
    ['a missing file', undefined, /cannot be read: ENOENT/],
    ['a file that is not YAML', '{', /is not valid YAML at line 1, column 2 \(/],
    ['a file that is not an object', '- 1', /no context with the name in current-context/],
    ['an unknown current-context', { ...WHOLE, 'current-context': 'z' }, /no context with/],
    ['an unknown cluster', { ...WHOLE, 'current-context': 'y' }, /no cluster "none"/],
    ['an unknown user', { ...WHOLE, users: [] }, /no user "u"/],
    ['a cluster without a server', withCluster({ server: '' }), /server is missing/],
    [
      'a client certificate without its key',
      withUser({ 'client-certificate': 'client.crt' }),
      /has a client-certificate but no client-key for user "u"/,
    ],
    [
      'a client key without its certificate',
      withUser({ 'client-key-data': 'a2V5' }),
      /has a client-key but no client-certificate for user "u"/,
    ],
    [
      'a server that is not a URL',
      withCluster({ server: 'kube.example' }),
      /^kubeconfig ".*": server "kube.example" is not an http or https URL/,
    ],
    [
      'a SOCKS proxy',
      withCluster({ 'proxy-url': 'socks5://10.0.0.9' }),
      /^kubeconfig ".*": proxy-url .* other proxies are not supported/,
    ],
    [
      'an auth provider',
      withUser({ 'auth-provider': { name: 'oidc' } }),
      /^kubeconfig ".*": auth-provider/,
    ],
  ] as const) {
    it(`rejects ${what}`, async () => {
      const kubeconfig = config === undefined ? join(directory, 'none') : write(config);
      await assert.rejects(loadClusterConfig({ kubeconfig }), (error) => {
        assert.ok(error instanceof ClusterConfigError);
        assert.match(error.message, pattern);
        return true;
      });
    });
  }
});
