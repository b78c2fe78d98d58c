import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { parse } from 'yaml';
import { ApiServerDouble } from '../api-server/double.ts';
import { type Manifest, type ServiceFields, serviceManifest } from '../e2e/manifests.ts';
import { PORTWIDE } from '../portwide.ts';

const run = (...args: string[]) =>
  execa(PORTWIDE, ['env', ...args], {
    reject: false,
    env: { KUBERNETES_SERVICE_HOST: undefined, KUBERNETES_SERVICE_PORT: undefined },
  });

function inNamespace(namespace: string, manifest: Manifest): Manifest {
  return { ...manifest, metadata: { ...(manifest.metadata as object), namespace } };
}

const API_SERVER = serviceManifest('kubernetes', {
  spec: { clusterIPs: ['10.96.0.1'], ports: [{ name: 'https', port: 443 }] },
});
const SIP = inNamespace(
  'voice',
  serviceManifest('sip', {
    annotations: { 'portwide.dev/ports': 'all' },
    spec: { clusterIPs: ['10.96.0.10', 'fd00:10:96::a'] },
  }),
);
const WEB = inNamespace(
  'voice',
  serviceManifest('web', {
    labels: { 'service.kubernetes.io/service-proxy-name': 'other' },
    spec: { clusterIPs: ['fd00:10:96::b'], ports: [{ port: 80 }] },
  }),
);
const ELSEWHERE = inNamespace(
  'data',
  serviceManifest('db', { spec: { clusterIPs: ['10.96.0.2'] } }),
);
/** A headless Service; nodes do not list it. */
const HEADLESS = inNamespace('voice', {
  apiVersion: 'v1',
  kind: 'Service',
  metadata: { name: 'peers', labels: { 'service.kubernetes.io/headless': '' } },
  spec: { clusterIP: 'None', ports: [{ port: 80 }] },
});
/** A pod in namespace `voice`. */
const pod = (name: string, labels: Readonly<Record<string, string>> = {}): Manifest => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name, namespace: 'voice', labels },
  spec: { containers: [{ name: 'media' }] },
});
const CLUSTER = [API_SERVER, SIP, WEB, ELSEWHERE, HEADLESS];

const KUBERNETES_VARIABLES = {
  KUBERNETES_SERVICE_HOST: '10.96.0.1',
  KUBERNETES_SERVICE_PORT: '443',
  KUBERNETES_SERVICE_PORT_HTTPS: '443',
  KUBERNETES_PORT: 'tcp://10.96.0.1:443',
  KUBERNETES_PORT_443_TCP: 'tcp://10.96.0.1:443',
  KUBERNETES_PORT_443_TCP_PROTO: 'tcp',
  KUBERNETES_PORT_443_TCP_PORT: '443',
  KUBERNETES_PORT_443_TCP_ADDR: '10.96.0.1',
};
const VOICE_VARIABLES = {
  ...KUBERNETES_VARIABLES,
  SIP_SERVICE_HOST: '10.96.0.10',
  WEB_SERVICE_HOST: 'fd00:10:96::b',
  WEB_SERVICE_PORT: '80',
  WEB_PORT: 'tcp://[fd00:10:96::b]:80',
  WEB_PORT_80_TCP: 'tcp://[fd00:10:96::b]:80',
  WEB_PORT_80_TCP_PROTO: 'tcp',
  WEB_PORT_80_TCP_PORT: '80',
  WEB_PORT_80_TCP_ADDR: 'fd00:10:96::b',
};

describe('env: portwide env', () => {
  let directory: string;
  const put = (name: string, text: string) => writeFileSync(join(directory, name), text);
  const putAll = (manifests: readonly Manifest[]) =>
    put('all.json', JSON.stringify({ apiVersion: 'v1', kind: 'List', items: manifests }));
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-env-'));
  });
  afterEach(() => rmSync(directory, { recursive: true, force: true }));

  describe('with --manifests', () => {
    const env = (...args: string[]) => run(`--manifests=${directory}`, ...args);
    beforeEach(() => putAll(CLUSTER));

    it('prints a JSON object with --output=json', async () => {
      const { stdout, stderr, exitCode } = await env('--namespace=voice', '--output=json');
      assert.deepEqual([exitCode, stderr], [0, '']);
      assert.deepEqual(JSON.parse(stdout), VOICE_VARIABLES);
    });

    it('notes on stderr when there are no variables, as with a misspelt namespace', async () => {
      putAll([SIP]);
      const { stdout, stderr, exitCode } = await env('--namespace=vioce');
      assert.deepEqual(
        [exitCode, stdout, stderr],
        [0, '', 'no variables: no Service with a cluster IP in namespace vioce'],
      );
    });

    it('prints lines that a shell can evaluate by default', async () => {
      const { stdout } = await env('-n', 'voice');
      const { stdout: seen } = await execa({
        input: stdout,
        extendEnv: false,
        env: { PATH: '/usr/bin:/bin' },
      })`sh -euc ${'eval "$(cat)"; env'}`;
      for (const [name, value] of Object.entries(VOICE_VARIABLES)) {
        assert.ok(seen.split('\n').includes(`${name}=${value}`), name);
      }
      assert.doesNotMatch(seen, /^SIP_(SERVICE_)?PORT/m);
    });

    it('prints the env field of a container with -o k8s', async () => {
      const { stdout } = await env('-n', 'voice', '-o', 'k8s');
      const expected = Object.entries(VOICE_VARIABLES).map(([name, value]) => ({ name, value }));
      assert.deepEqual(parse(stdout), { env: expected });
    });

    it("prints only the API server's variables with --no-service-links", async () => {
      const { stdout } = await env('-n', 'voice', '-o', 'json', '--no-service-links');
      assert.deepEqual(JSON.parse(stdout), KUBERNETES_VARIABLES);
    });

    it('omits port variables while a Service is all-ports', async () => {
      const names = async () => {
        const { stdout } = await env('-n', 'voice', '-o', 'json');
        return Object.keys(JSON.parse(stdout)).filter((name) => name.startsWith('SIP_'));
      };
      assert.deepEqual(await names(), ['SIP_SERVICE_HOST']);
      const metadata = { ...(SIP.metadata as object), annotations: {} };
      putAll([{ ...SIP, metadata }]);
      assert.deepEqual(await names(), [
        'SIP_SERVICE_HOST',
        'SIP_SERVICE_PORT',
        'SIP_PORT',
        'SIP_PORT_1_TCP',
        'SIP_PORT_1_TCP_PROTO',
        'SIP_PORT_1_TCP_PORT',
        'SIP_PORT_1_TCP_ADDR',
      ]);
      putAll([SIP]);
      assert.deepEqual(await names(), ['SIP_SERVICE_HOST']);
    });

    describe('with --pod', () => {
      const media = (name: string, fields: Partial<ServiceFields> & { selector?: object }) =>
        inNamespace(
          'voice',
          serviceManifest(name, {
            annotations: {
              'portwide.dev/owned-ports': '20000-29999/UDP,30000-30250/TCP',
              'portwide.dev/ports-per-pod': '100',
            },
            ...fields,
            spec: { clusterIPs: ['10.96.0.20'], selector: fields.selector, ...fields.spec },
          }),
        );
      const owned = async (...args: readonly string[]) => {
        const { stdout, stderr } = await env('-n', 'voice', '-o', 'json', ...args);
        const variables = JSON.parse(stdout) as Record<string, string>;
        const names = Object.keys(variables).filter((name) => name.includes('_OWNED_'));
        return [...names.map((name) => `${name}=${variables[name]}`), stderr];
      };

      it('prints no ports of a pod on the host network', async () => {
        const onHost = { ...pod('media-1'), spec: { hostNetwork: true } };
        putAll([...CLUSTER, media('media', {}), onHost]);
        assert.deepEqual(await owned('--pod=media-1'), [
          'pod media-1 owns no ports: it is on the host network',
        ]);
      });

      it('prints the ports that the pod owns and the VIPs to announce', async () => {
        const refusedOne = media('refused', {
          annotations: { 'portwide.dev/owned-ports': '20000-29999/UDP' },
        });
        const pods = ['media-1', 'media-2', 'media-100', 'x7z12'].map((name) => pod(name));
        putAll([...CLUSTER, media('media-2', {}), refusedOne, ...pods]);
        const vips = 'MEDIA_2_OWNED_VIPS=10.96.0.20';
        assert.deepEqual(await owned('--pod=media-1'), [
          'MEDIA_2_OWNED_PORTS=20100-20199/UDP,30100-30199/TCP',
          vips,
          '',
        ]);
        assert.deepEqual(await owned('--pod=media-2'), [
          'MEDIA_2_OWNED_PORTS=20200-20299/UDP',
          vips,
          '',
        ]);
        assert.deepEqual(await owned('--pod=media-100'), [
          'pod media-100 owns no ports: no Service that selects it has a slice 100',
        ]);
        assert.deepEqual(await owned('--pod=x7z12'), [
          'pod x7z12 owns no ports: its name does not end in a hyphen and a number',
        ]);
        const shell = await env('-n', 'voice', '--no-service-links', '--pod', 'media-1');
        assert.match(
          shell.stdout,
          /^export MEDIA_2_OWNED_PORTS='20100-20199\/UDP,30100-30199\/TCP';$/m,
        );
      });

      it('prints ports of the Services that select the pod only', async () => {
        const labels = { app: 'media', tier: 'edge' };
        putAll([
          media('by-one', { selector: { app: 'media' } }),
          media('by-two', { selector: labels }),
          media('by-hand', {}),
          media('other-app', { selector: { app: 'turn' } }),
          media('more', { selector: { ...labels, zone: 'a' } }),
          pod('media-0', labels),
        ]);
        const names = (await owned('--pod=media-0')).map((line) => line.split('=')[0]);
        assert.deepEqual(
          names.filter((name) => name?.endsWith('PORTS')),
          ['BY_HAND_OWNED_PORTS', 'BY_ONE_OWNED_PORTS', 'BY_TWO_OWNED_PORTS'],
        );
      });

      it('prints the first load balancer IP of each family as VIP, else the cluster IP', async () => {
        const clusterIPs = ['fd00:10:96::14', '10.96.0.20'];
        const ingress = [
          { ip: '203.0.113.8', ipMode: 'Proxy' },
          { ip: '203.0.113.9', ipMode: 'VIP' },
          { ip: '203.0.113.1' },
        ];
        putAll([
          media('lb', { ingress, spec: { type: 'LoadBalancer', clusterIPs } }),
          pod('media-0'),
        ]);
        const [, vips] = await owned('--pod=media-0');
        assert.equal(vips, 'LB_OWNED_VIPS=fd00:10:96::14,203.0.113.9');
      });

      it('fails for an unknown pod, and for a name that no pod can have', async () => {
        putAll([media('media', {}), inNamespace('data', pod('media-0'))]);
        const unknown = await env('-n', 'voice', '--pod=media-0');
        assert.deepEqual([unknown.exitCode, unknown.stdout], [2, '']);
        assert.match(unknown.stderr, /no pod media-0 in namespace voice/);
        assert.equal((await env('-n', 'voice', '--pod', 'media_0')).exitCode, 2);
      });
    });

    it('notes on stderr unreadable objects and names that a shell cannot have', async () => {
      put('bad.yaml', 'apiVersion: v1\nkind: Service\nmetadata: {name: A}\nspec: {}\n');
      put(
        'digit.yaml',
        'apiVersion: v1\nkind: Service\nmetadata: {name: 3com, namespace: voice}\n' +
          'spec: {clusterIP: 10.96.0.3, ports: [{port: 80}]}\n',
      );
      const { stdout, stderr, exitCode } = await env('-n', 'voice');
      assert.equal(exitCode, 0);
      assert.match(stderr, /bad\.yaml:1: Service default\/A: metadata\.name: must be a DNS label/);
      const names = ['SERVICE_HOST', 'SERVICE_PORT', 'PORT', 'PORT_80_TCP'];
      names.push(...['PROTO', 'PORT', 'ADDR'].map((end) => `PORT_80_TCP_${end}`));
      assert.deepEqual(
        stderr.split('\n').filter((line) => line.includes('3COM')),
        [
          `omitted, because a shell variable cannot start with a digit: ${names.map((name) => `3COM_${name}`).join(', ')}`,
        ],
      );
      assert.doesNotMatch(stdout, /3COM/);
      const object = await env('-n', 'voice', '-o', 'json');
      assert.doesNotMatch(object.stderr, /3COM/);
      assert.equal(JSON.parse(object.stdout)['3COM_SERVICE_HOST'], '10.96.0.3');
    });
  });

  describe('with an API server', () => {
    let double: ApiServerDouble;
    beforeEach(async () => {
      double = new ApiServerDouble();
      await double.listen();
      double.put(...CLUSTER);
    });
    afterEach(() => double.close());

    it('lists all Services once and watches nothing', async () => {
      const { stdout, stderr, exitCode } = await run(
        `--master=${double.url}`,
        '--namespace=voice',
        '-o',
        'json',
      );
      assert.deepEqual([exitCode, stderr], [0, '']);
      assert.deepEqual(JSON.parse(stdout), VOICE_VARIABLES);
      const asked = double.requests().map(({ verb, path, query }) => ({ verb, path, query }));
      assert.deepEqual(asked, [{ verb: 'list', path: '/api/v1/services', query: {} }]);
    });

    it('reads one pod with --pod', async () => {
      double.put(pod('media-0'), pod('media-1'), inNamespace('data', pod('media-0')));
      const { stderr } = await run(`--master=${double.url}`, '-n', 'voice', '--pod', 'media-0');
      assert.match(stderr, /pod media-0 owns no ports/);
      const fieldSelector = 'metadata.name=media-0';
      const asked = double.requests().map(({ path, query }) => ({ path, query }));
      assert.deepEqual(
        asked.toSorted((a, b) => a.path.localeCompare(b.path)),
        [
          { path: '/api/v1/namespaces/voice/pods', query: { fieldSelector } },
          { path: '/api/v1/services', query: {} },
        ],
      );
      const unknown = await run(`--master=${double.url}`, '-n', 'voice', '--pod', 'media-2');
      assert.match(unknown.stderr, /no pod media-2 in namespace voice/);
    });

    it('reads the kubeconfig of --kubeconfig and of --config', async () => {
      put(
        'kubeconfig',
        `{current-context: c, contexts: [{name: c, context: {cluster: c}}],
          clusters: [{name: c, cluster: {server: "${double.url}"}}]}`,
      );
      put(
        'config',
        `{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration,
          clientConnection: {kubeconfig: "${directory}/kubeconfig"}}`,
      );
      for (const flag of [`--kubeconfig=${directory}/kubeconfig`, `--config=${directory}/config`]) {
        const { stdout, stderr } = await run(flag, '-n', 'default', '-o', 'json');
        assert.deepEqual([JSON.parse(stdout), stderr], [KUBERNETES_VARIABLES, ''], flag);
      }
    });

    it('notes an unreadable Service and prints the variables of the others', async () => {
      double.put({
        apiVersion: 'v1',
        kind: 'Service',
        metadata: { name: 'odd', namespace: 'voice' },
        spec: { clusterIP: '10.96.0.300' },
      });
      const { stdout, stderr } = await run(`--master=${double.url}`, '-n', 'voice', '-o', 'json');
      assert.match(stderr, /^Service voice\/odd: spec\.clusterIP: .*10\.96\.0\.300/);
      assert.deepEqual(JSON.parse(stdout), VOICE_VARIABLES);
    });

    it('exits with 2 when the list is forbidden', async () => {
      double.fail({ fault: { kind: 'status', code: 403, reason: 'Forbidden' } });
      const { stdout, stderr, exitCode } = await run(`--master=${double.url}`, '-n', 'voice');
      assert.match(stderr, /^portwide: API server: 403 Forbidden: /);
      assert.deepEqual([exitCode, stdout], [2, '']);
    });

    it('exits with 2 when the API server is unreachable', async () => {
      await double.close();
      const { stderr, exitCode } = await run(`--master=${double.url}`, '-n', 'voice');
      assert.match(stderr, /^portwide: API server: .*ECONNREFUSED/);
      assert.equal(exitCode, 2);
    });
  });

  describe('rejects', () => {
    for (const [flags, expected] of [
      [['--manifests=/nowhere'], /'-n, --namespace <name>' not specified/],
      [['-n', 'A_B', '--manifests=/nowhere'], /namespace.*DNS label/],
      [['-n', '', '--manifests=/nowhere'], /namespace.*DNS label/],
      [['-n', 'a', '-o', 'yaml', '--manifests=/nowhere'], /choices are shell, json, k8s/],
      [['-n', 'a', '--manifests=/nowhere'], /^portwide: manifest directory "\/nowhere" cannot/],
      [
        ['-n', 'a', '--manifests=/nowhere', '--master=x'],
        /--manifests: cannot be combined with --master/,
      ],
      [['-n', 'a', '--kubeconfig=/no/such'], /kubeconfig "\/no\/such" cannot be read: ENOENT/],
      [['-n', 'a', '--master=nonsense'], /--master "nonsense" is not an http or https URL/],
      [['-n', 'a'], /neither --kubeconfig nor --master is set/],
    ] as const) {
      it(flags.join(' '), async () => {
        const { exitCode, stderr, stdout } = await run(...flags);
        assert.deepEqual([exitCode, stdout], [2, '']);
        assert.match(stderr, expected);
      });
    }
  });
});
