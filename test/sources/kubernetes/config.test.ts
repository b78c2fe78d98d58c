import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ClusterConfigError, loadClusterConfig } from '../../../sources/kubernetes/config.ts';
import { createKubernetesSource } from '../../../sources/kubernetes/source.ts';
import { Recorder, until } from '../recorder.ts';
import { FakeApiServer } from './fake-api-server.ts';

describe('kubernetes configuration', () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-kubeconfig-'));
  });
  afterEach(() => rmSync(directory, { recursive: true, force: true }));

  const kubeconfig = (text: string): string => {
    const path = join(directory, 'config');
    writeFileSync(path, text);
    return path;
  };
  const whole = JSON.stringify({
    clusters: [{ name: 'c', cluster: { server: 'https://10.0.0.1:6443/k8s/' } }],
    users: [{ name: 'u', user: { token: 'secret' } }],
    contexts: [{ name: 'x', context: { cluster: 'c', user: 'u' } }],
    'current-context': 'x',
  });

  it('reads a kubeconfig, and lets --master take its server’s place', async () => {
    const path = kubeconfig(whole);
    const config = await loadClusterConfig({ kubeconfig: path });
    assert.equal(config.getCurrentCluster()?.server, 'https://10.0.0.1:6443/k8s');
    const other = await loadClusterConfig({ kubeconfig: path, master: 'http://127.0.0.1:8080' });
    assert.equal(other.getCurrentCluster()?.server, 'http://127.0.0.1:8080');
    assert.equal(other.getCurrentUser()?.token, 'secret');
  });

  it('uses the path of the server and the credentials', async () => {
    const server = new FakeApiServer();
    await server.listen();
    const source = createKubernetesSource({
      kubeconfig: kubeconfig(whole.replace('https://10.0.0.1:6443', server.url)),
      nodeName: 'n',
      sink: new Recorder(),
      onProblem: () => assert.fail(),
      log: { info: () => undefined, warn: () => undefined },
    });
    const started = source.start();
    try {
      await until('it lists', () => server.requests.length === 3);
      for (const { path, authorization } of server.requests) {
        assert.match(path, /^\/k8s\/apis?\//);
        assert.equal(authorization, 'Bearer secret');
      }
    } finally {
      await source.stop();
      await started;
      await server.close();
    }
  });

  for (const [what, text, pattern] of [
    ['a file that is missing', undefined, /cannot be read: ENOENT/],
    ['one that is no YAML', '{', /cannot be read/],
    [
      'one without a current context',
      '{"clusters": [], "users": [], "contexts": []}',
      /no current cluster/,
    ],
    [
      'a server that is no URL',
      whole.replace('https://10.0.0.1:6443/k8s/', 'kube.example'),
      /no URL/,
    ],
  ] as const) {
    it(`refuses ${what}`, async () => {
      const path = text === undefined ? join(directory, 'none') : kubeconfig(text);
      await assert.rejects(loadClusterConfig({ kubeconfig: path }), (error) => {
        assert.ok(error instanceof ClusterConfigError);
        assert.match(error.message, pattern);
        return true;
      });
    });
  }
});
